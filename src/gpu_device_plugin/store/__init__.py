"""The node's file system: what the agent must remember, and the files that slices are made of."""
