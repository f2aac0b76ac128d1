"""NVML behind a process boundary: `source` is the agent's side, `child` the side that may hang."""
