"""How long one Allocate may take, and how long each thing that it waits for.

The kubelet has no limit of its own, and starts no other pod of the node meanwhile. The waits do not
add up to the whole: a call that meets two slow peers ends by `CALL_SECONDS`, and grants nothing.
"""

CALL_SECONDS = 4.0
LIST_SECONDS = 2.0
"""The kubelet's PodResources API: one question, with its repetitions."""
KUBELET_PODS_SECONDS = 1.0
"""The kubelet's Pods API."""
API_OBJECT_SECONDS = 1.0
"""One object of the API server."""
WRITE_SECONDS = 3.0
"""Until the grant is durable."""
