"""What the node has: cards and their health, mode and unit, use of slices."""
