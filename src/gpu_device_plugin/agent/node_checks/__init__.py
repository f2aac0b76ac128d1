"""Whether the node can serve pods: checks, readiness, the uninstall mark, the admin socket.

The health of single cards is in `card_watch`.
"""
