"""The whole cluster for a person with a kubeconfig: read once, nothing written."""
