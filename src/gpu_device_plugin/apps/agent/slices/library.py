"""The isolation library's versions on this node: installed, kept while needed, removed after."""

from collections.abc import Iterable
from pathlib import Path

import structlog

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.publish.event_recorder import EventRecorder
from gpu_device_plugin.domain.edits import LIBRARY_FILE
from gpu_device_plugin.domain.ledger import Grant
from gpu_device_plugin.errors import ConfigError, NodeError, StorageError
from gpu_device_plugin.store.library import LIBRARY, SELFTEST, LibraryVersions, Package, package
from gpu_device_plugin.store.native import native_library

MISSING = "IsolationLibraryMissing"
_log = structlog.get_logger("library")


class LibraryInstaller:
    """Installs our version on the node, and keeps those that grants name."""

    def __init__(self, directory: Path, recorder: EventRecorder) -> None:
        self._directory = directory
        self._recorder = recorder
        self._ours, self._problem = _packaged()
        self._versions = LibraryVersions(directory, self._ours)
        self._is_verified = False
        self.is_leaving = False
        """The node is marked for uninstalling: nothing is installed any more."""

    def check(self) -> tuple[str, str]:
        """Install our version; returns the one for new containers, or "" and why there is none."""
        if self._ours is not None and not self.is_leaving:
            self._install(self._ours)
        version = self._versions.current()
        if version:
            return version, ""
        return "", (
            f"no version of {LIBRARY} with its ld.so.preload is in {self._directory}"
            f"{self._problem and f' ({self._problem})'}, so slices cannot be enforced; install "
            f"it, or start with --isolation off"
        )

    def provide(self, grant: Grant) -> bool:
        """Complete the version that a grant names; returns whether anything was missing.

        Raises:
            NodeError: It cannot be done; the container must not start.
        """
        try:
            was_missing = self._versions.provide(grant.library_version)
        except StorageError as error:
            raise NodeError(f"pod {grant.pod}: {error}", reason=MISSING) from error
        if was_missing:
            ours = self._ours.version if self._ours else ""
            self._recorder.library_made_again(grant, ours)
        return was_missing

    def has_selftest(self, version: str) -> bool:
        """Whether containers of that version can check their cap themselves."""
        return self._versions.has_selftest(version)

    def tidy(self, used: Iterable[str]) -> None:
        """Remove versions of earlier agents that neither a grant nor the checkpoint names."""
        for version in self._versions.remove_unused(frozenset(used), is_leaving=self.is_leaving):
            _log.info("unused version removed", version=version)

    def _install(self, ours: Package) -> None:
        # Content is compared once; later checks compare only sizes.
        if self._is_verified and self._versions.is_complete(ours.version):
            return
        try:
            if self._versions.install():
                _log.info("installed", version=ours.version, directory=str(self._directory))
            self._is_verified, self._problem = True, ""
        except StorageError as error:
            self._is_verified, self._problem = False, str(error)


def _packaged() -> tuple[Package | None, str]:
    """The library that this agent brings, or None and why there is none."""
    try:
        found = package(__version__, native_library(LIBRARY), _selftest(), LIBRARY_FILE)
    except (ConfigError, StorageError) as error:
        return None, str(error)
    return found, ""


def _selftest() -> Path | None:
    try:
        return native_library(SELFTEST)
    except ConfigError:
        return None
