"""We reach the API server as a kubeconfig or a service account says, also after a rotation."""

import base64
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tools.harness.api_server import QUICK, kubeconfig, running, status

from gpu_device_plugin.errors import AccessError, ClusterError, WrongServerError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.credentials import in_cluster, load_credentials
from gpu_device_plugin.kubernetes.client.kubeconfig import read_context

NODES = Request("GET", "/api/v1/nodes")
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


async def ask(path: Path) -> Answer:
    """One request with the credentials of this kubeconfig."""
    api = ApiServer.at(path, pace=QUICK)
    try:
        return await api.call(NODES)
    finally:
        await api.close()


@pytest.mark.parametrize(
    ("user", "expected"),
    [({"token": "t0"}, "Bearer t0"), ({"username": "u", "password": "p"}, "Basic dTpw"), ({}, "")],
)
async def test_a_kubeconfig_says_who_we_are(
    tmp_path: Path, user: dict[str, str], expected: str
) -> None:
    """Token, basic, or nobody."""
    async with running() as (server, _):
        path = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}/", user)

        assert (await ask(path)).status == 200
        assert server.requests[-1].authorization == expected


@pytest.mark.parametrize("login", ["token", "exec"])
async def test_a_kubeconfig_that_asks_for_somebody_else_is_obeyed(
    tmp_path: Path, login: str
) -> None:
    """As kubectl does it: else a person sees, or changes, what somebody else was to."""
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.extend(request.headers.items())
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/api/v1/nodes", answer)
    credential = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
    credential += '"status": {"token": "t0"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo"}
    user: dict[str, Any] = {"token": "t0"} if login == "token" else {}
    user |= {"exec": {**plugin, "args": [credential]}} if login == "exec" else {}
    user |= {"as": "jane", "as-groups": ["dev", "ops"], "as-user-extra": {"why": ["a", "b"]}}
    async with TestServer(app) as server:
        path = kubeconfig(tmp_path / "config", str(server.make_url("")), user)
        assert (await ask(path)).status == 200

    assert ("Authorization", "Bearer t0") in seen
    assert [each for each in seen if each[0].startswith("Impersonate-")] == [
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-why", "a"),
        ("Impersonate-Extra-why", "b"),
    ]


async def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A path beside the kubeconfig; before a fixed token, as in client-go."""
    async with running() as (server, _):
        (tmp_path / "token").write_text("first\n")
        user = {"tokenFile": "token", "token": "never"}
        path = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", user)
        api = ApiServer.at(path, pace=QUICK)
        await api.call(NODES)
        (tmp_path / "token").write_text("second\n")
        await api.call(NODES)
        await api.close()

        assert [s.authorization for s in server.requests] == ["Bearer first", "Bearer second"]


async def test_after_401_the_kubeconfig_is_read_again(tmp_path: Path) -> None:
    """Somebody replaced the file; we need no restart."""
    async with running() as (server, _):
        server.fault = lambda seen: status(401, "no") if "old" in seen.authorization else None
        url = f"http://127.0.0.1:{server.port}"
        path = kubeconfig(tmp_path / "config", url, {"token": "old"})
        api = ApiServer.at(path, pace=QUICK)
        with pytest.raises(ClusterError, match="401 no"):
            await api.call(NODES)
        kubeconfig(path, url, {"token": "new"})

        assert (await api.call(NODES)).status == 200
        await api.close()


async def test_a_login_plugin_is_run_by_the_kubernetes_client(tmp_path: Path) -> None:
    """`exec`, as the clouds' kubeconfigs have it."""
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        '"status":{"token":"from-plugin"}}'
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print('{credential}')"],
    }
    async with running() as (server, _):
        path = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {"exec": plugin})

        assert (await ask(path)).status == 200
        assert server.requests[-1].authorization == "Bearer from-plugin"


async def test_a_failing_login_plugin_is_an_error(tmp_path: Path) -> None:
    """The client only logs it; without credentials we must not go on as nobody."""
    plugin = {"apiVersion": "v1", "command": sys.executable, "args": ["-c", "exit(3)"]}
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", {"exec": plugin})

    with pytest.raises(ClusterError, match="its login plugin gave no credentials"):
        await load_credentials([path])


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_login_plugin_that_is_not_installed_is_named_before_it_is_run(
    tmp_path: Path, program: str
) -> None:
    """With what the kubeconfig says about getting it; commands do not try again."""
    plugin = {"apiVersion": "v1", "command": program, "installHint": "get it\nthere"}
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", {"exec": plugin})

    with pytest.raises(
        AccessError, match=f"kubeconfig {path}: .*'{program}' is not installed: get it there"
    ):
        read_context([path])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("{", "while parsing a flow node"),
        ("{}", "it names no context; there are: none"),
        ("", "it names no context; there are: none"),
        ('{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}]}', "'c'"),
        (
            '{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],'
            '"clusters":[{"name":"c","cluster":{}}]}',
            "its server None is no URL",
        ),
        (
            '{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],'
            '"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:notaport"}}]}',
            "its server 'https://127.0.0.1:notaport' is no URL",
        ),
        (
            '{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],'
            '"clusters":[{"name":"c","cluster":{"server":"10.0.0.1:6443"}}]}',
            "its server '10.0.0.1:6443' is no URL",
        ),
        (
            '{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],'
            '"clusters":[{"name":"c","cluster":{"server":"https://x",'
            '"certificate-authority":"gone.crt"}}]}',
            "gone.crt: No such file or directory",
        ),
        (
            '{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],'
            '"clusters":[{"name":"c","cluster":{"server":"https://x",'
            '"certificate-authority-data":"!"}}]}',
            "base64",
        ),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, expected: str
) -> None:
    """With the file, and what is wrong in it."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ClusterError, match=f"kubeconfig {path}.*{expected}") as raised:
        await load_credentials([path])
    assert "Errno" not in str(raised.value)


def test_outside_a_pod_there_is_no_service_account(tmp_path: Path) -> None:
    """The text says what is missing, and what to do, in the words of `usual_files`."""
    cure = "; name one with --kubeconfig or KUBECONFIG"
    with pytest.raises(ClusterError, match=f"no kubeconfig: KUBERNETES_SERVICE_HOST .*{cure}"):
        in_cluster({}, tmp_path)
    with pytest.raises(ClusterError, match=r"ca\.crt"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)


@needs_openssl
def test_a_service_account_names_the_server_and_its_token_file(tmp_path: Path) -> None:
    """IPv6 hosts in brackets; the token is read at every request, for the kubelet rotates it."""
    made = _authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes((made / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("one")

    found = in_cluster(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
    )

    assert found.server == "https://[fd00::1]:443"
    assert found.authorization() == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert found.authorization() == "Bearer two"


@needs_openssl
@pytest.mark.parametrize("is_inline", [True, False], ids=["data", "files"])
async def test_a_client_certificate_is_shown_and_the_server_is_checked(
    tmp_path: Path,
    is_inline: bool,  # noqa: FBT001
) -> None:
    """Both ends know each other by the same authority; nothing is written to a disk."""
    made = _authority(tmp_path)
    before = sorted(tmp_path.iterdir())
    async with _tls_server(made) as url:
        path = _certificate_kubeconfig(tmp_path, url, made, is_inline=is_inline)
        answer = await ask(path)
        assert answer.body == b"hello agent"

        strangers = _certificate_kubeconfig(tmp_path, url, None, is_inline=is_inline)
        with pytest.raises(WrongServerError, match="is not trusted: "):
            await ask(strangers)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "config"])


def _certificate_kubeconfig(
    directory: Path, url: str, made: Path | None, *, is_inline: bool
) -> Path:
    path = kubeconfig(directory / "config", url, {})
    config = json.loads(path.read_text())
    names = {
        "certificate-authority": config["clusters"][0]["cluster"],
        "client-certificate": config["users"][0]["user"],
        "client-key": config["users"][0]["user"],
    }
    files = {
        "certificate-authority": "ca.crt",
        "client-certificate": "agent.crt",
        "client-key": "agent.key",
    }
    for key, owner in names.items():
        if made is not None and is_inline:
            owner[f"{key}-data"] = base64.b64encode((made / files[key]).read_bytes()).decode()
        elif made is not None:
            owner[key] = f"{made.name}/{files[key]}"
    path.write_text(json.dumps(config))
    return path


def _authority(directory: Path) -> Path:
    """An authority, a server certificate for 127.0.0.1 and a client certificate for `agent`."""
    made = directory / "made"
    made.mkdir()
    _certificate(made, "ca", ["-addext", "basicConstraints=critical,CA:TRUE"])
    signed = ["-CA", str(made / "ca.crt"), "-CAkey", str(made / "ca.key")]
    _certificate(made, "server", [*signed, "-addext", "subjectAltName=IP:127.0.0.1"])
    _certificate(made, "agent", [*signed, "-addext", "extendedKeyUsage=clientAuth"])
    return made


def _certificate(made: Path, name: str, more: list[str]) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    command += ["-keyout", str(made / f"{name}.key"), "-out", str(made / f"{name}.crt"), *more]
    subprocess.run(command, check=True, capture_output=True)


@asynccontextmanager
async def _tls_server(made: Path) -> AsyncIterator[str]:
    async def hello(request: web.Request) -> web.Response:
        assert request.transport is not None
        shown: Any = request.transport.get_extra_info("peercert")
        return web.Response(text=f"hello {shown['subject'][0][0][1]}")

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made / "ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    # As a server in Go: it takes an authority without key usage, which Python refuses from 3.13 on.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls.load_cert_chain(made / "server.crt", made / "server.key")
    app = web.Application()
    app.router.add_get("/{path:.*}", hello)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
