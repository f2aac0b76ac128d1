"""What tests, demo and measurements run programs in: stand-ins of kubelet and API server, clusters, slices."""
