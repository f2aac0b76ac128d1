"""The only speaker to the Kubernetes API; nothing here is ever waited for by Allocate."""
