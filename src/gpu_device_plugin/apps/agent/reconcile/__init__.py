"""Grants brought together with what the kubelet holds, again and again."""
