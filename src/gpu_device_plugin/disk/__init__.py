"""The node's file system: grants, files of slices, library versions, locks, labels.

When they are written is decided in `agent`. What reads or writes raises StorageError where the file
system refuses.
"""
