"""The only speaker to the Kubernetes API: `client` carries, `objects` knows what is carried.

What is decided from it is in `domain`.
"""
