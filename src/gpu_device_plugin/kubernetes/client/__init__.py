"""Requests, watches, retries and logins, for objects of any kind.

What single kinds of objects mean is in `kubernetes/objects`.
"""
