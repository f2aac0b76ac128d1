"""The rules of sharing a card: values in, values out; no I/O, no clock."""
