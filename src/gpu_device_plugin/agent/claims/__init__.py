"""Claims (DRA): cards offered to the scheduler, claims prepared and given back.

The sockets are in `kubelet/dra_sockets`, ResourceSlices in `kubernetes`.
"""
