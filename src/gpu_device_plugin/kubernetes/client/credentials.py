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
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_device_plugin.errors import AccessError
from gpu_device_plugin.kubernetes.client.kubeconfig import (
    Context,
    join_paths,
    no_kubeconfig,
    one_line,
    read_context,
)

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
        raise no_kubeconfig("KUBERNETES_SERVICE_HOST and _PORT are not set, as in a pod")
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
