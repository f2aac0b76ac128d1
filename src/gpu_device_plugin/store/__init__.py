"""The node's file system: the state that the agent keeps, and the files of slices."""
