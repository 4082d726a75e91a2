"""The subjects, a file each."""
