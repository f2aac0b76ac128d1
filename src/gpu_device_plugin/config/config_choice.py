"""Which of NVIDIA's configuration files counts: the one named, or one of a directory by a label.

The choice is that of NVIDIA's config-manager (R-730).
"""

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from gpu_device_plugin.config.nvidia_settings import (
    Configuration,
    NvidiaSettings,
    nvidia_configuration,
)
from gpu_device_plugin.errors import ConfigError

_NAMED = "default"
_WRITTEN_SECONDS = 1.0
"""A file that changed so recently may be half written; it is read at the next check."""
_Stamp: TypeAlias = tuple[str, tuple[int, int, int] | None]


class Fallback(StrEnum):
    """What counts where neither the label nor `--default-config` names a file."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Found:
    """What was read last.

    Attributes:
        stamp: Differs when another file was chosen, or the file has changed.
        path: The file; empty for the empty configuration.
        result: What it says, or what is wrong with it; None before anything was read.
    """

    stamp: _Stamp | str | None = None
    path: str = ""
    result: Configuration | ConfigError | None = None


def read_if_changed(settings: NvidiaSettings, name: str | None, before: Found) -> Found:
    """Read the file that counts now; `before` itself where it is the same and has not changed.

    A file in force that somebody may still be writing is left for the next check: half of one, or
    an empty one, may be a valid configuration.

    Args:
        settings: With the file, or with the directory.
        name: Value of the node's label, empty without one; None where a setting names the file.
        before: What was read last.
    """
    try:
        file = Path(settings.config_file) if name is None else chosen(settings, name)
    except ConfigError as error:
        return before if before.stamp == str(error) else Found(str(error), "", error)
    stamp: _Stamp = (str(file or ""), _stamp(file))
    is_same_file = before.result is not None and before.path == stamp[0]
    if stamp == before.stamp or (is_same_file and _is_being_written(file)):
        return before
    try:
        return Found(stamp, stamp[0], nvidia_configuration(settings, file))
    except ConfigError as error:
        return Found(stamp, stamp[0], error)


def chosen(settings: NvidiaSettings, name: str) -> Path | None:
    """The file of `--config-file-srcdir` that counts; None is the empty configuration.

    Args:
        settings: The directory, the default and the fallbacks.
        name: Value of the node's label, or empty.

    Raises:
        ConfigError: There is no such file, or none is chosen; the text has NVIDIA's words.
    """
    directory = Path(settings.config_file_srcdir)
    there = _files(directory)
    asked = name or settings.default_config
    if asked:
        if asked not in there:
            known = ", ".join(there) or "none"
            raise ConfigError(
                f"specified config {asked} does not exist in {directory}; there: {known}"
            )
        return directory / asked
    for fallback in fallbacks(settings):
        if fallback is Fallback.NAMED and _NAMED in there:
            return directory / _NAMED
        if fallback is Fallback.SINGLE and len(there) == 1:
            return directory / there[0]
        if fallback is Fallback.EMPTY:
            return None
    raise ConfigError("no config was set, no default was provided, and all fallbacks failed")


def fallbacks(settings: NvidiaSettings) -> tuple[Fallback, ...]:
    """The fallbacks in their order.

    Raises:
        ConfigError: One is not known.
    """
    names = [name.strip() for name in settings.fallback_strategies.split(",") if name.strip()]
    for name in names:
        if name not in list(Fallback):
            known = ", ".join(Fallback)
            raise ConfigError(
                f"--fallback-strategies: {name!r} is not valid: wanted some of {known}"
            )
    return tuple(map(Fallback, names))


def _files(directory: Path) -> list[str]:
    """Names of the files; a mounted ConfigMap has links and hidden directories beside them."""
    try:
        return sorted(
            each.name
            for each in directory.iterdir()
            if not each.name.startswith(".") and each.is_file()
        )
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Differs when the file does; a ConfigMap replaces the directory that a link leads to."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _is_being_written(file: Path | None) -> bool:
    """By its age; a time in the future tells nothing."""
    try:
        return file is not None and 0 <= time.time() - file.stat().st_mtime < _WRITTEN_SECONDS
    except OSError:
        return False
