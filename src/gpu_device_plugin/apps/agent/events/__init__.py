"""What happens on the node, told once to log, metrics, Events and `why`."""
