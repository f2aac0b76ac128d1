"""The rules: values in, values out; no I/O, clock, lock or log.

What gathers the values and carries out the results is in `agent`, `controller` and the edges.
"""
