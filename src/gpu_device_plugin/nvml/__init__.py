"""NVML behind a process boundary: `source` is the agent's side, `child` the one that may hang."""
