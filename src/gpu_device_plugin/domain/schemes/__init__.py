"""Ways of sharing cards: each turns devices into pools, requests into decisions, grants into edits."""
