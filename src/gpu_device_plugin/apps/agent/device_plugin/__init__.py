"""The front of the kubelet's device plugin API: its calls for one container, and who makes them."""
