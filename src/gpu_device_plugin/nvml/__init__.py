"""The only importer of pynvml: the child process that asks the driver, and its messages.

What reports mean for cards is in `domain/cards`.
"""
