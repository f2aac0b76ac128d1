"""What the agent publishes: device lists, Events, metrics, labels and annotations."""
