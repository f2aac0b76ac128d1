"""The front of claims (DRA): cards offered to the scheduler, and claims prepared for containers."""
