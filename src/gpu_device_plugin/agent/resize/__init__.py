"""What is done where a running pod's slice is to have another size."""
