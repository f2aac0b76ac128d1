"""Admission of a container: identity, card and units, a durable grant, the check at its start."""
