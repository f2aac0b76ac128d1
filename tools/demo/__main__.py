"""`python -m tools.demo`, as `make demo` runs it: what this project does, in half a minute without a GPU.

Runs an agent on each of three simulated nodes and shows what they offer, which pod gets which
slice and why, what a container receives, a card that fails and recovers, and MIG instances
and replicas under NVIDIA's names. If this machine has an NVIDIA driver, its cards are listed
too, and not touched.

Needs no Kubernetes and no root, and leaves nothing behind. Everything is checked while it
is shown: the exit code is 0 only if all of it is true.
"""

import asyncio
import os
import sys
import time

from rich.console import Console

from gpu_device_plugin import __version__
from gpu_device_plugin.cli.program import EXIT_FAILED, EXIT_INTERRUPTED
from gpu_device_plugin.errors import GpuPluginError
from tools.demo.demo_output import Teller

# To be set before grpc is imported: gRPC would log connections that end with their agent, and
# warn of agents that are started by fork and exec.
_GRPC = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
_EXIT_TERMINATED = 143


def main() -> int:
    """Play the demo; the exit code."""
    for name, value in _GRPC.items():
        os.environ.setdefault(name, value)
    screen = Teller(Console(highlight=False))
    screen.opening(__version__)
    began = time.monotonic()
    try:
        from tools.demo.run_demo import run_demo  # which imports grpc

        promises = asyncio.run(run_demo(screen))
    except KeyboardInterrupt:
        screen.ended_early("interrupted")
        return EXIT_INTERRUPTED
    except asyncio.CancelledError:
        screen.ended_early("told to end")
        return _EXIT_TERMINATED
    except GpuPluginError as error:
        screen.failed(str(error))
        return EXIT_FAILED
    screen.closing(promises, time.monotonic() - began)
    return 0 if all(promise.is_kept for promise in promises) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
