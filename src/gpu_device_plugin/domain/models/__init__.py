"""Models of cards and versions of the driver, asked for by a pod's labels."""
