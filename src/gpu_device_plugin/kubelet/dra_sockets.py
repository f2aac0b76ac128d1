"""The sockets by which the kubelet finds the driver of claims, and asks it.

The kubelet watches `plugins_registry/`. It calls a socket that it finds there, at its own start as
well, and forgets the driver when the socket goes. It deletes the ResourceSlices of a driver that is
away for 30 s, and at its own start those of all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import structlog

from gpu_device_plugin.domain.grants.claims import DRIVER
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet.dra_servicer import ClaimService, ClaimServicer
from gpu_device_plugin.kubelet.unix_sockets import is_socket, listen

_log = structlog.get_logger(__name__)


LOOK_SECONDS = 1.0
RETRY_SECONDS = 2.0
CLOSE_SECONDS = 1.0


class ClaimServer:
    """Serves claims to the kubelet for as long as `run` runs."""

    def __init__(self, kubelet_dir: Path, service: ClaimService) -> None:
        self._socket, self._registry_socket = _sockets(kubelet_dir)
        self._service = service
        self._health_changed = asyncio.Event()
        self.trouble = "not served yet"
        """Why the kubelet cannot reach the driver; empty once it has taken it."""

    def tell_health(self) -> None:
        self._health_changed.set()
        self._health_changed = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; made again where somebody removes a socket."""
        while True:
            try:
                await self._serve_once()
            except KubeletError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    _log.warning("claims are not served", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _serve_once(self) -> None:
        servicer = ClaimServicer(
            self._service, str(self._socket), lambda: self._health_changed, self._registered
        )
        # The kubelet dials the first one as soon as it finds the second, and forgets it with that.
        async with (
            _listening(self._socket, *servicer.method_tables()),
            _listening(self._registry_socket, servicer.registration_table()),
        ):
            while is_socket(self._socket) and is_socket(self._registry_socket):
                await asyncio.sleep(LOOK_SECONDS)
            self.trouble = "a socket was removed"

    def _registered(self, is_taken: bool, why: str) -> None:  # noqa: FBT001 - as the kubelet tells it
        self.trouble = "" if is_taken else why
        _log.info("claims registered" if is_taken else "claims not registered", error=why)


def remove_sockets(kubelet_dir: Path) -> None:
    """Remove those that a killed agent has left: the kubelet takes them for a driver."""
    for path in _sockets(kubelet_dir):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise KubeletError(f"{path}: cannot be removed: {error.strerror}") from error
    with suppress(OSError):  # it is not there, or a mount
        _sockets(kubelet_dir)[0].parent.rmdir()


def _sockets(kubelet_dir: Path) -> tuple[Path, Path]:
    """That of the driver, and that by which the kubelet finds it."""
    driver = kubelet_dir / "plugins" / DRIVER / "dra.sock"
    return driver, kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"


@asynccontextmanager
async def _listening(path: Path, *tables: grpc.GenericRpcHandler) -> AsyncIterator[None]:
    """A server on a socket; one that a killed agent has left there is replaced."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(tables)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise KubeletError(f"cannot listen on {path}: {error}") from error
        await listen(server, path)
        yield
    finally:
        path.unlink(missing_ok=True)
        await server.stop(CLOSE_SECONDS)
