"""The isolation library's versions on this node: installed, kept while needed, removed after."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import structlog

from gpu_device_plugin import __version__
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.library_versions import (
    LIBRARY,
    SELFTEST,
    LibraryVersions,
    Package,
    package,
)
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.grants.cdi_spec import HOOK
from gpu_device_plugin.domain.grants.container_edits import LIBRARY_FILE
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import ConfigError, NodeError, StorageError

MISSING = "IsolationLibraryMissing"
_GLANCE_SECONDS = 1.0
_log = structlog.get_logger("library")


class LibraryInstaller:
    """Installs our version where slices are enforced, and keeps those that grants name."""

    def __init__(
        self, directory: Path, recorder: EventRecorder, writer: Writer, node_store: NodeStore
    ) -> None:
        self._writer = writer
        self._directory = directory
        self._recorder = recorder
        self._node_store = node_store
        self._mode = node_store.read().mode
        self._missing = ""
        self._bundled, self._problem = _find_package()
        self._versions = LibraryVersions(directory, self._bundled)
        self._is_verified = False
        self._following: dict[str, bool] = {}
        self._whole: Mapping[str, bool] = {}  # versions, and whether they bring the self-test
        self._is_leaving = False
        node_store.subscribe(self._state_changed)

    async def run(self) -> None:
        """Install our version, and publish the one for new containers or that there is none."""
        if self._is_due(self._node_store.read()):
            version, self._missing = await self._writer.run(self._check)
            self._node_store.update(library_version=version)
            self._judge()

    def leave(self, *, is_leaving: bool) -> None:
        """The node is marked for uninstalling, and nothing is installed any more; or no longer."""
        self._is_leaving, self._whole = is_leaving, {}

    def _state_changed(self, state: NodeState) -> None:
        """Judge before another mode is offered, which may need the library."""
        if state.mode is not self._mode:
            self._mode = state.mode
            self._judge()

    def _judge(self) -> None:
        state = self._node_store.read()
        if self._is_due(state):
            text = self._missing if self._missing and state.isolates else None
            self._recorder.fault(MISSING, text)

    @staticmethod
    def _is_due(state: NodeState) -> bool:
        return state.wants_isolation and not state.mark

    def _check(self) -> tuple[str, str]:
        if self._bundled is not None and not self._is_leaving:
            self._install(self._bundled)
        self._whole = self._versions.whole()
        version = self._versions.current()
        if version:
            return version, ""
        return "", (
            f"no version of {LIBRARY} with its ld.so.preload is in {self._directory}"
            f"{self._problem and f' ({self._problem})'}, so slices cannot be enforced; install "
            f"it, or start with --isolation off"
        )

    async def provide(self, grant: Grant, *, is_start: bool = False) -> bool:
        """Complete the version that a grant names; returns whether anything was missing.

        A version that the last check found whole counts as whole. Before a container starts it is
        looked at once more, but not for long: a disk that is stuck keeps no container from
        starting whose library was there a moment ago. NodeError: the container must not start.
        """
        version = grant.library_version
        is_known = version in self._whole
        if is_known and not is_start:
            return False
        try:
            async with asyncio.timeout(_GLANCE_SECONDS if is_known else None):
                was_missing = await self._writer.run(partial(self._provide, version))
        except TimeoutError:
            return False
        except StorageError as error:
            raise NodeError(f"pod {grant.pod}: {error}", reason=MISSING) from error
        if was_missing:
            installed = self._bundled.version if self._bundled else ""
            self._recorder.library_made_again(grant, installed)
        return was_missing

    def _provide(self, version: str) -> bool:
        was_missing = self._versions.provide(version)
        self._whole = self._versions.whole()
        return was_missing

    def has_selftest(self, version: str) -> bool:
        return self._whole.get(version, False)

    async def follows_limits(self, version: str) -> bool:
        """Whether processes with that version follow limits that change. StorageError: it cannot be read now."""
        if version not in self._following:
            self._following[version] = await self._writer.run(
                partial(self._versions.has_text, version, b"bad revision")
            )
        return self._following[version]

    async def tidy(self, used: Iterable[str]) -> None:
        """Remove versions of earlier agents that neither a grant nor the checkpoint names."""
        remove = partial(self._versions.remove_unused, frozenset(used), is_leaving=self._is_leaving)
        for version in await self._writer.run(remove):
            _log.info("unused version removed", version=version)

    def _install(self, bundled: Package) -> None:
        # Content is compared once; later checks compare only sizes.
        if self._is_verified and self._versions.is_complete(bundled.version):
            return
        try:
            if self._versions.install():
                _log.info("installed", version=bundled.version, directory=str(self._directory))
            self._is_verified, self._problem = True, ""
        except StorageError as error:
            self._is_verified, self._problem = False, str(error)


def _find_package() -> tuple[Package | None, str]:
    """The library that this agent brings, or None and why there is none."""
    try:
        found = package(__version__, native_library(LIBRARY), _programs(), LIBRARY_FILE)
    except (ConfigError, StorageError) as error:
        return None, str(error)
    return found, ""


def own_version() -> str:
    """The version of the library that this program brings; empty if it was not built."""
    found, _ = _find_package()
    return found.version if found else ""


def _programs() -> Iterator[Path]:
    for name in (SELFTEST, HOOK):
        with contextlib.suppress(ConfigError):
            yield native_library(name)
