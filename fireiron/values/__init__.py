"""What everything else is made of: index expressions, layouts, tensors and their views, machines, units of threads.

May import: errors and other values.
"""
