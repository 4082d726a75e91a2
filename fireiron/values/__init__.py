"""The basic values: index expressions, layouts, tensors and views, machines, numbering of threads.

May import: errors and other values.
"""
