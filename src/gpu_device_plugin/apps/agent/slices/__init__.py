"""A slice's files on the node, and what its container receives."""
