"""What happens to a whole installation: its upgrade, its end, and what it leaves on a node."""
