"""The only package that calls the Kubernetes API. Allocate never waits for it."""
