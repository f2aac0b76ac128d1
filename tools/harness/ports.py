"""Ports for programs that are told theirs before they listen."""

import itertools
import os
import socket

_FIRST, _COUNT = 20000, 12000
# Not of the kernel's range: no connection of another program takes one meanwhile. Each process begins elsewhere.
_tried = itertools.count(os.getpid() * 61)


def free_port() -> int:
    """A port of loopback on which nobody listens, another one at each call."""
    for number in itertools.islice(_tried, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"every port of {_FIRST} to {_FIRST + _COUNT - 1} is taken")
