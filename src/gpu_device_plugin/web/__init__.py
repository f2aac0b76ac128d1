"""The only TCP listener: metrics, health and readiness."""
