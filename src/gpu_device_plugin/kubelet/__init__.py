"""The sockets of the kubelet: device plugin, DRA plugin, PodResources, checkpoint; the only importer of grpc.

What is answered is decided in `agent/kubelet_calls` and `agent/claims`.
"""
