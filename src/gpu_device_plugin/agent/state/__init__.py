"""The node state, the ledger and the record of events: one writer, many readers.

The values themselves are in `domain`, the files in `disk`.
"""
