"""`gpu-device-plugin demo`: the story, and what its end means for the exit code."""

import asyncio
import os
import sys
import time

import click

from gpu_device_plugin import __version__
from gpu_device_plugin.errors import GpuPluginError

_EXIT_BROKEN = 1
_EXIT_INTERRUPTED = 130
_EXIT_ENDED = 143
# To be set before grpc is imported: connections that end with their agent are no news to a
# person, and agents are started by fork and exec at once.
_GRPC = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}


@click.command()
def demo() -> None:
    """Show in half a minute, without a GPU, what this project does.

    Two simulated nodes, each with an agent as on a GPU node: what they offer, who gets which
    slice and why, what a container receives, a card that breaks and comes back. Where this
    machine has an NVIDIA driver its cards are shown as well, and nothing is done to them.

    Needs no Kubernetes and no root, and leaves nothing behind. Everything is checked while it
    is shown: the exit code is 0 only if every promise was kept.
    """
    for name, value in _GRPC.items():
        os.environ.setdefault(name, value)
    # Not at the top: an agent must not pay for what only the demo needs.
    from rich.console import Console

    from gpu_device_plugin.cli.demo_screen import Screen

    screen = Screen(Console(highlight=False))
    screen.opening(__version__)
    began = time.monotonic()
    try:
        from gpu_device_plugin.apps.demo.run import run_demo

        promises = asyncio.run(run_demo(screen))
    except KeyboardInterrupt:
        screen.ended_early("interrupted")
        sys.exit(_EXIT_INTERRUPTED)
    except asyncio.CancelledError:
        screen.ended_early("told to end")
        sys.exit(_EXIT_ENDED)
    except GpuPluginError as error:
        screen.failed(str(error))
        sys.exit(_EXIT_BROKEN)
    screen.closing(promises, time.monotonic() - began)
    if not all(promise.is_kept for promise in promises):
        sys.exit(_EXIT_BROKEN)
