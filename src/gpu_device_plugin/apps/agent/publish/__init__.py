"""What others read: the kubelet's device lists, Events, metrics, labels and annotations."""
