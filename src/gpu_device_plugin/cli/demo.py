"""`gpu-device-plugin demo`: the story, and what its end means for the exit code."""

import asyncio
import sys
import time

import click
from rich.console import Console

from gpu_device_plugin.apps.demo.run import run_demo
from gpu_device_plugin.cli.demo_screen import Screen
from gpu_device_plugin.errors import GpuPluginError

_EXIT_BROKEN = 1
_EXIT_INTERRUPTED = 130
_EXIT_ENDED = 143


@click.command()
def demo() -> None:
    """Show on simulated cards what this project does, in less than a minute.

    Two nodes, each with an agent as on a GPU node: what they offer, who gets which slice and
    why, what a container receives, a card that breaks and comes back. Needs no GPU, no
    Kubernetes and no root. Everything is checked while it is shown: the exit code is 0 only if
    every promise was kept.
    """
    screen = Screen(Console(highlight=False))
    began = time.monotonic()
    try:
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
