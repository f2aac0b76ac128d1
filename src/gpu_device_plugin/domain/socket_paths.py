"""How long the path of a Unix socket may be."""

LONGEST_PATH = 107
"""Bytes, in Linux: 108 with the zero byte at the end (unix(7))."""
