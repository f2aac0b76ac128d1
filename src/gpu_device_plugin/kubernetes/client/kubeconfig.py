"""Kubeconfig files as kubectl reads them: which files, which context, and what it refers to."""

import base64
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpu_device_plugin.errors import AccessError


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster or user of a kubeconfig; relative paths in `values` are relative to `base`."""

    values: Mapping[str, Any]
    base: Path

    def content(self, key: str) -> bytes | None:
        """`<key>-data`, else what the file `<key>` holds, else None."""
        if self.values.get(f"{key}-data"):
            return base64.b64decode("".join(self.values[f"{key}-data"].split()), validate=True)
        return (self.base / self.values[key]).read_bytes() if self.values.get(key) else None


@dataclass(frozen=True, slots=True)
class Context:
    """A context with what it refers to; `namespace` is empty where it names none."""

    cluster: Entry
    user: Entry
    namespace: str = ""


class _Named(msgspec.Struct):
    name: str
    cluster: dict[str, Any] = {}
    user: dict[str, Any] | None = None
    context: dict[str, Any] = {}


class _Kubeconfig(msgspec.Struct, rename={"current_context": "current-context"}):
    current_context: str = ""
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


def usual_files(given: Path | None, environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """The files of a person's kubeconfig, as kubectl finds them; none inside a pod without one.

    `KUBECONFIG` may name several files; those that are missing are left out.

    Raises:
        AccessError: There is no file, and this is not a pod; the text names what was tried.
    """
    if given is not None:
        return (given,)
    listed = [Path(name) for name in environment.get("KUBECONFIG", "").split(os.pathsep) if name]
    tried = listed or [home / ".kube" / "config"]
    found = tuple(path for path in tried if path.is_file())
    if not found and not environment.get("KUBERNETES_SERVICE_HOST"):
        raise no_kubeconfig(f"{join_paths(tried)} is not there")
    return found


def no_kubeconfig(why: str) -> AccessError:
    """That there is no file, why, and how to name one."""
    return AccessError(f"no kubeconfig: {why}; name one with --kubeconfig or KUBECONFIG")


def read_context(files: Sequence[Path], name: str = "") -> Context:
    """A context of these files, by default the first `current-context`; AccessError if missing."""
    configs = _decoded(files)
    try:
        current = next((c.current_context for c, _ in configs if c.current_context), "")
        contexts = [(each, base) for c, base in configs for each in c.contexts or ()]
        clusters = [(each, base) for c, base in configs for each in c.clusters or ()]
        users = [(each, base) for c, base in configs for each in c.users or ()]
        context = _called(contexts, name or current, "context")[0].context
        cluster, base = _called(clusters, context.get("cluster", ""), "cluster")
        found = Entry(cluster.cluster, base)
        user = Entry({}, base)
        if context.get("user"):
            entry, base = _called(users, context["user"], "user")
            user = Entry(entry.user or {}, base)
        _check_url("server", found.values.get("server"), "https://HOST:6443")
        if found.values.get("proxy-url"):
            _check_url("proxy-url", found.values["proxy-url"], "http://HOST:3128")
        _check_login_plugin(user.values.get("exec"))
        return Context(found, user, str(context.get("namespace") or ""))
    except AccessError as error:
        raise AccessError(f"kubeconfig {join_paths(files)}: {one_line(error)}") from error


def context_names(files: Sequence[Path]) -> Sequence[str]:
    """The names of all contexts of these files; AccessError where they cannot be read."""
    return [each.name for config, _ in _decoded(files) for each in config.contexts or ()]


def _decoded(files: Sequence[Path]) -> Sequence[tuple[_Kubeconfig, Path]]:
    """Each file with the directory that its paths are relative to."""
    found = []
    for file in files:
        try:
            # A file may be empty.
            config = msgspec.yaml.decode(file.read_bytes(), type=_Kubeconfig | None)
        except OSError as error:
            raise AccessError(f"kubeconfig {error.filename}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            *_, line = ("", *re.findall(r", line (\d+)", str(error)))
            where = f"{file}, line {line}" if line else str(file)
            raise AccessError(f"kubeconfig {where}: {one_line(error)}") from error
        found.append((config or _Kubeconfig(), file.resolve().parent))
    return found


def _check_url(key: str, value: object, example: str) -> None:
    try:
        parts = urlsplit(str(value))
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not match
        is_url = False
    if not is_url:
        raise AccessError(f"its {key} {value!r} is no URL such as {example}")


def _check_login_plugin(plugin: object) -> None:
    """Refuse a program that is not installed; by a relative path or a PATH of its own it is just run."""
    if not isinstance(plugin, dict) or any(
        e.get("name") == "PATH" for e in plugin.get("env") or ()
    ):
        return
    program = str(plugin.get("command") or "")
    is_relative = os.sep in program and not Path(program).is_absolute()
    if program and not is_relative and shutil.which(program) is None:
        hint = one_line(Exception(plugin.get("installHint") or "install it"))
        raise AccessError(f"its login plugin {program!r} is not installed: {hint}")


def _called(items: Sequence[tuple[_Named, Path]], name: str, what: str) -> tuple[_Named, Path]:
    for item, base in items:
        if item.name == name:
            return item, base
    there = ", ".join(item.name for item, _ in items) or "none"
    if not name:
        raise AccessError(f"it names no {what}; there are: {there}")
    raise AccessError(f"no {what} is called {name!r}; there are: {there}")


def join_paths(files: Sequence[Path]) -> str:
    """The files in an error's text."""
    return ", ".join(map(str, files))


def one_line(error: BaseException) -> str:
    """An error's text; YAML's has several lines, and the system's a number."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split())
