"""What lies on the node for a slice, and what its container receives."""
