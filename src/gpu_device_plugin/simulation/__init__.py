"""Stand-ins for what surrounds the agent: a kubelet, and GPUs by their profiles."""
