"""Reconcile: grants and files are compared with what the kubelet holds, and corrected."""
