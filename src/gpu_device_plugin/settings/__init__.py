"""Flags, environment and files as frozen values; NVIDIA's configuration file.

What a setting does is in the room that reads the value.
"""
