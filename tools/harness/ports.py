"""Ports for programs that are told theirs before they listen."""

import itertools
import os
import random
import socket

# Not of the kernel's range: no connection of another program takes one meanwhile. Workers that run side by
# side have a part each; what is no worker has the last.
_PARTS, _COUNT = 8, 1500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{_PARTS - 1}").removeprefix("gw")) % _PARTS
_FIRST = 20000 + _WORKER * _COUNT
_numbers = itertools.count(random.SystemRandom().randrange(_COUNT))


def free_port() -> int:
    """A port of loopback on which nobody listens, another one at each call."""
    for number in itertools.islice(_numbers, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"every port of {_FIRST} to {_FIRST + _COUNT - 1} is taken")
