"""A real Kubernetes on this machine, for the end-to-end tests."""
