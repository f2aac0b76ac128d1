"""TCP listeners and what they answer: pages, kube-scheduler, the API server."""
