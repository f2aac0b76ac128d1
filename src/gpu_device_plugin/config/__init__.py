"""What the operator decides: flags, environment and file become settings."""
