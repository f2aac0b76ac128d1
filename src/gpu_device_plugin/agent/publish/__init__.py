"""What the agent tells others: device lists, metrics, labels, annotations, claims' offers.

Nothing is decided here, and no admission waits for it.
"""
