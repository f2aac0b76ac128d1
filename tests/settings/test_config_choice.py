"""The promise: label, default and fallbacks choose a file as NVIDIA's config-manager does (R-730)."""

import os
import time
from pathlib import Path

import pytest

from gpu_device_plugin.domain.nvidia.configuration import MigStrategy
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import load_settings
from gpu_device_plugin.settings.nvidia_configuration import LastRead, choose_file, read_if_changed

FAILED = "no config was set, no default was provided, and all fallbacks failed"


CHOICES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("a b", "b", {}, "b"),
    ("a b", "b", {"default_config": "a"}, "b"),
    ("a b", "", {"default_config": "a"}, "a"),
    ("a default", "", {}, "default"),
    ("a", "", {}, "a"),
    ("a", "", {"fallback_strategies": "empty,single"}, ""),
    ("a b", "", {"fallback_strategies": "named,single,empty"}, ""),
    ("a b", "", {}, FAILED),
    ("a", "", {"fallback_strategies": ""}, FAILED),
    ("a b", "c", {}, "specified config c does not exist"),
    ("a b", "", {"default_config": "c"}, "specified config c does not exist"),
    ("a b", "../a", {}, "specified config ../a does not exist"),
)
"""Files, the node's label, settings, and the file that counts or why there is none."""


@pytest.mark.parametrize(("files", "label", "settings", "wanted"), CHOICES)
def test_the_file_that_counts(
    tmp_path: Path, files: str, label: str, settings: dict[str, str], wanted: str
) -> None:
    """A mounted ConfigMap's hidden directories are no files (R-730)."""
    (tmp_path / "..data").mkdir()
    for name in files.split():
        (tmp_path / name).write_text("version: v1")
    all_settings = {"node_name": "n", "config_file_srcdir": str(tmp_path), **settings}
    loaded = load_settings(all_settings, {}, None)
    if " " in wanted:
        with pytest.raises(ConfigError, match=wanted):
            choose_file(loaded, label)
    else:
        assert choose_file(loaded, label) == (tmp_path / wanted if wanted else None)


def test_an_unknown_fallback_is_refused_at_the_start(tmp_path: Path) -> None:
    """With those that are known."""
    flags = {"node_name": "n", "config_file_srcdir": str(tmp_path), "fallback_strategies": "x"}
    with pytest.raises(ConfigError, match="'x' is not valid: wanted some of named, single, empty"):
        load_settings(flags, {}, None)


def test_a_file_and_a_directory_exclude_each_other(tmp_path: Path) -> None:
    """The sidecar's destination is not needed."""
    flags = {"node_name": "n", "config_file_srcdir": str(tmp_path), "config_file": "/x"}
    with pytest.raises(ConfigError, match="--config-file and --config-file-srcdir exclude"):
        load_settings(flags, {}, None)


def test_a_file_is_read_again_only_when_it_or_the_choice_changes(tmp_path: Path) -> None:
    """Also a bad one, so that it is reported once."""
    for name, text in (("a", "flags: {migStrategy: mixed}"), ("b", "x: 1")):
        (tmp_path / name).write_text(text)
    loaded = load_settings({"node_name": "n", "config_file_srcdir": str(tmp_path)}, {}, None)
    first = read_if_changed(loaded, "a", LastRead())
    bad = read_if_changed(loaded, "b", first)
    none = read_if_changed(loaded, "c", bad)

    assert getattr(first.result, "mig_strategy", None) is MigStrategy.MIXED
    assert isinstance(bad.result, ConfigError)
    assert isinstance(none.result, ConfigError)
    assert read_if_changed(loaded, "a", first) is first
    assert read_if_changed(loaded, "b", bad) is bad
    assert read_if_changed(loaded, "c", none) is none


def test_a_file_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    """One that was only opened for writing is empty, which would be a valid configuration."""
    file = tmp_path / "config.yaml"
    file.write_text("flags: {migStrategy: mixed}")
    loaded = load_settings({"node_name": "n", "config_file": str(file)}, {}, None)
    before = read_if_changed(loaded, None, LastRead())
    file.write_text("")
    assert read_if_changed(loaded, None, before) is before

    file.write_text("flags: {migStrategy: single}")
    then = time.time() - 10
    os.utime(file, (then, then))
    after = read_if_changed(loaded, None, before)
    assert getattr(after.result, "mig_strategy", None) is MigStrategy.SINGLE


def test_a_file_with_a_time_in_the_future_is_read(tmp_path: Path) -> None:
    """A clock that was set back keeps no configuration out."""
    file = tmp_path / "config.yaml"
    file.write_text("flags: {migStrategy: mixed}")
    loaded = load_settings({"node_name": "n", "config_file": str(file)}, {}, None)
    before = read_if_changed(loaded, None, LastRead())
    file.write_text("flags: {migStrategy: single}")
    then = time.time() + 1000
    os.utime(file, (then, then))
    after = read_if_changed(loaded, None, before)
    assert getattr(after.result, "mig_strategy", None) is MigStrategy.SINGLE
