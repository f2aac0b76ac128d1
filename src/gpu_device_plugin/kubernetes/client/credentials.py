"""Where the API server is and who we are: a kubeconfig file, or the pod's service account.

Both are read here rather than by the Kubernetes client, which costs 25 MB and 0.7 s to
import, reads `tokenFile` once and never again, and writes client keys to temporary files.
Only a kubeconfig that needs a login plugin (`exec`, `auth-provider`) goes through it.
"""

import asyncio
import base64
import importlib
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
        raise _no_kubeconfig(f"{join_paths(tried)} is not there")
    return found


def _no_kubeconfig(why: str) -> AccessError:
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
    try:
        # A file may be empty.
        decode = partial(msgspec.yaml.decode, type=_Kubeconfig | None)
        return [(decode(f.read_bytes()) or _Kubeconfig(), f.resolve().parent) for f in files]
    except OSError as error:
        raise AccessError(f"kubeconfig {error.filename}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise AccessError(f"kubeconfig {join_paths(files)}: {one_line(error)}") from error


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


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the API server.

    Attributes:
        server: Base URL without a trailing slash.
        tls_server_name: Name expected in the certificate, if not the URL's.
        proxy: Proxy URL; empty for none. The environment's proxy variables are not used.
        header: A fixed `Authorization` header; empty with `token_file` or a certificate.
        token_file: File with a bearer token that is rotated.
    """

    server: str
    tls: ssl.SSLContext | None = None
    tls_server_name: str = ""
    proxy: str = ""
    header: str = field(default="", repr=False)
    token_file: Path | None = None
    impersonation: tuple[tuple[str, str], ...] = ()

    def authorization(self) -> str:
        """The `Authorization` header for now; the token file is read each time (a few µs)."""
        if self.token_file is None:
            return self.header
        try:
            return f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"
        except (OSError, ValueError) as error:
            raise AccessError(f"token file {one_line(error)}") from error


async def load_credentials(
    files: Sequence[Path], context: str = "", acting_as: str = ""
) -> Credentials:
    """The credentials of a context, empty for the current one; without files the service account's.

    `acting_as` is a user to impersonate in the place of the context's `as`.
    """
    chosen = {"as": acting_as} if acting_as else {}
    if not files:
        own = in_cluster(os.environ, SERVICE_ACCOUNT)
        return replace(own, impersonation=tuple(_impersonation(chosen)))
    found = read_context(files, context)
    try:
        impersonation = tuple(_impersonation({**found.user.values, **chosen}))
        if "exec" in found.user.values or "auth-provider" in found.user.values:
            credentials = await _through_login_plugin(files, context)
        else:
            credentials = _from_context(found)
        return replace(credentials, impersonation=impersonation)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AccessError(f"kubeconfig {join_paths(files)}: {one_line(error)}") from error


def in_cluster(environment: Mapping[str, str], directory: Path) -> Credentials:
    """The service account in `directory`, which the kubelet mounts and renews."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise _no_kubeconfig("KUBERNETES_SERVICE_HOST and _PORT are not set, as in a pod")
    name = f"[{host}]" if ":" in host else host
    try:
        tls = _tls(ca_text=(directory / "ca.crt").read_text(encoding="ascii"))
    except (OSError, ValueError, ssl.SSLError) as error:
        raise AccessError(f"service account {directory}: {one_line(error)}") from error
    return Credentials(f"https://{name}:{port}", tls, token_file=directory / "token")


def _from_context(context: Context) -> Credentials:
    user, cluster = context.user.values, context.cluster.values
    server = str(cluster["server"]).rstrip("/")
    tls = None
    if server.startswith("https"):
        authority = context.cluster.content("certificate-authority")
        tls = _tls(
            ca_text=authority.decode("ascii") if authority else None,
            certificate=context.user.content("client-certificate"),
            key=context.user.content("client-key"),
            is_checked=not cluster.get("insecure-skip-tls-verify", False),
        )
    header = f"Bearer {user['token']}" if user.get("token") else ""
    if not header and user.get("username"):
        login = f"{user['username']}:{user.get('password', '')}"
        header = f"Basic {base64.b64encode(login.encode()).decode()}"
    # As in client-go, a token file takes precedence over a token.
    token_file = context.user.base / user["tokenFile"] if user.get("tokenFile") else None
    return Credentials(
        server,
        tls,
        str(cluster.get("tls-server-name", "")),
        str(cluster.get("proxy-url", "")),
        header,
        token_file,
    )


def _impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The user to impersonate, by the keys `as`, `as-uid`, `as-groups` and `as-user-extra`."""
    extra = (user.get("as-user-extra") or {}).items()
    asked = [("User", user.get("as")), ("Uid", user.get("as-uid"))]
    asked += [("Group", group) for group in user.get("as-groups") or ()]
    asked += [(f"Extra-{key}", value) for key, values in extra for value in values]
    return ((f"Impersonate-{name}", str(value)) for name, value in asked if value)


def _tls(
    *,
    ca_text: str | None,
    certificate: bytes | None = None,
    key: bytes | None = None,
    is_checked: bool = True,
) -> ssl.SSLContext:
    tls = ssl.create_default_context(cadata=ca_text)
    # Python 3.13 refuses authorities without a key identifier, which many clusters have.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not is_checked:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _load_certificate(tls, certificate + b"\n" + (key or b""))
    return tls


def _load_certificate(tls: ssl.SSLContext, chain: bytes) -> None:
    """OpenSSL takes only a path; one to memory, where there is such, keeps the key off the disk."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("client-certificate")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(chain)
        tls.load_cert_chain(path)
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            Path(path).unlink()


async def _through_login_plugin(files: Sequence[Path], context: str) -> Credentials:
    """Credentials from the Kubernetes client, which supports exec plugins, OIDC and others."""
    config = await asyncio.to_thread(importlib.import_module, "kubernetes.aio.config")
    client = await asyncio.to_thread(importlib.import_module, "kubernetes.aio.client")
    settings = client.Configuration()
    try:
        await config.load_kube_config(
            config_file=os.pathsep.join(map(str, files)),
            context=context or None,
            client_configuration=settings,
            persist_config=False,
        )
        header = await settings.get_api_key_with_prefix("BearerToken") or ""
        certificate, key = _content(settings.cert_file), _content(settings.key_file)
        authority = _content(settings.ssl_ca_cert)
        tls = _tls(
            ca_text=authority.decode("ascii") if authority else None,
            certificate=certificate,
            key=key,
            is_checked=bool(settings.verify_ssl),
        )
    except (config.ConfigException, OSError, ValueError, ssl.SSLError) as error:
        raise AccessError(f"kubeconfig {join_paths(files)}: {one_line(error)}") from error
    if not header and certificate is None:  # the client only logs why
        raise AccessError(f"kubeconfig {join_paths(files)}: its login plugin gave no credentials")
    return Credentials(
        str(settings.host).rstrip("/"),
        tls,
        settings.tls_server_name or "",
        settings.proxy or "",
        header,
    )


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None
