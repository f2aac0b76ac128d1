"""The page for the cluster: nodes, cards and slices in a browser; nothing is written."""
