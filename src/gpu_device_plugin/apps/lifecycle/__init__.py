"""Lifecycle of a whole installation: upgrade, uninstall, and the cleanup of a node."""
