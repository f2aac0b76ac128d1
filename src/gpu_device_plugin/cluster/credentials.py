"""Where the API server is and who we are: a kubeconfig file, or the pod's service account.

Both are read here rather than by the Kubernetes client, which costs 25 MB and 0.7 s to
import, reads `tokenFile` once and never again, and writes client keys to temporary files.
Only a kubeconfig that needs a login plugin (`exec`, `auth-provider`) goes through it.
"""

import asyncio
import base64
import importlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_device_plugin.errors import ClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the API server.

    Attributes:
        server: Base URL without a trailing slash.
        tls: Context for https; None for plain http.
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

    def authorization(self) -> str:
        """The `Authorization` header for now; the token file is read each time (a few µs)."""
        if self.token_file is None:
            return self.header
        try:
            return f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"
        except (OSError, ValueError) as error:
            raise ClusterError(f"token file {self.token_file}: {error}") from error


async def load_credentials(kubeconfig: Path | None) -> Credentials:
    """The credentials of `kubeconfig`'s current context, or of the pod's service account."""
    if kubeconfig is None:
        return in_cluster(os.environ, SERVICE_ACCOUNT)
    context = _read_kubeconfig(kubeconfig)
    if "exec" in context.user or "auth-provider" in context.user:
        return await _through_login_plugin(kubeconfig)
    try:
        return _from_context(context)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"kubeconfig {kubeconfig}: {_text(error)}") from error


def in_cluster(environment: Mapping[str, str], directory: Path) -> Credentials:
    """The service account in `directory`, which the kubelet mounts and renews."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterError(
            "no kubeconfig given, and KUBERNETES_SERVICE_HOST and _PORT are not set: not in a pod"
        )
    name = f"[{host}]" if ":" in host else host
    try:
        tls = _tls(ca_text=(directory / "ca.crt").read_text(encoding="ascii"))
    except (OSError, ValueError, ssl.SSLError) as error:
        raise ClusterError(f"service account {directory}: {_text(error)}") from error
    return Credentials(f"https://{name}:{port}", tls, token_file=directory / "token")


@dataclass(frozen=True, slots=True)
class _Context:
    """The current context of a kubeconfig; relative paths are relative to `base`."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    base: Path

    def content(self, owner: Mapping[str, Any], key: str) -> bytes | None:
        """`<key>-data`, else what the file `<key>` holds, else None."""
        if owner.get(f"{key}-data"):
            return base64.b64decode("".join(owner[f"{key}-data"].split()), validate=True)
        return (self.base / owner[key]).read_bytes() if owner.get(key) else None


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


def _read_kubeconfig(path: Path) -> _Context:
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=_Kubeconfig)
        context = _named(config.contexts, config.current_context, "context").context
        cluster = _named(config.clusters, context.get("cluster", ""), "cluster").cluster
        user_name = context.get("user", "")
        user = _named(config.users, user_name, "user").user if user_name else None
    except (OSError, msgspec.MsgspecError, ClusterError) as error:
        raise ClusterError(f"kubeconfig {path}: {_text(error)}") from error
    return _Context(cluster, user or {}, path.resolve().parent)


def _named(items: list[_Named] | None, name: str, what: str) -> _Named:
    for item in items or ():
        if item.name == name:
            return item
    raise ClusterError(f"no {what} is called {name!r}")


def _from_context(context: _Context) -> Credentials:
    user, cluster = context.user, context.cluster
    server = str(cluster["server"]).rstrip("/")
    tls = None
    if server.startswith("https"):
        authority = context.content(cluster, "certificate-authority")
        tls = _tls(
            ca_text=authority.decode("ascii") if authority else None,
            certificate=context.content(user, "client-certificate"),
            key=context.content(user, "client-key"),
            is_checked=not cluster.get("insecure-skip-tls-verify", False),
        )
    header = f"Bearer {user['token']}" if user.get("token") else ""
    if not header and user.get("username"):
        login = f"{user['username']}:{user.get('password', '')}"
        header = f"Basic {base64.b64encode(login.encode()).decode()}"
    # As in client-go, a token file takes precedence over a token.
    token_file = context.base / user["tokenFile"] if user.get("tokenFile") else None
    return Credentials(
        server,
        tls,
        str(cluster.get("tls-server-name", "")),
        str(cluster.get("proxy-url", "")),
        header,
        token_file,
    )


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
        # OpenSSL takes only a path; a path to memory keeps the key off the disk.
        descriptor = os.memfd_create("client-certificate")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(certificate + b"\n" + (key or b""))
            tls.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    return tls


async def _through_login_plugin(path: Path) -> Credentials:
    """Credentials from the Kubernetes client, which supports exec plugins, OIDC and others."""
    config = await asyncio.to_thread(importlib.import_module, "kubernetes.aio.config")
    client = await asyncio.to_thread(importlib.import_module, "kubernetes.aio.client")
    settings = client.Configuration()
    try:
        await config.load_kube_config(
            config_file=str(path), client_configuration=settings, persist_config=False
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
        raise ClusterError(f"kubeconfig {path}: {_text(error)}") from error
    if not header and certificate is None:  # the client only logs why
        raise ClusterError(f"kubeconfig {path}: its login plugin gave no credentials")
    return Credentials(
        str(settings.host).rstrip("/"),
        tls,
        settings.tls_server_name or "",
        settings.proxy or "",
        header,
    )


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _text(error: BaseException) -> str:
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())  # one line; a YAML error has several
