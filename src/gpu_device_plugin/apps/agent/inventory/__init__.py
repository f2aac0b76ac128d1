"""What the node has and serves: cards and their health, mode and unit, use of slices."""
