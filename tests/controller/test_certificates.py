"""The controller's address: TLS by a certificate of its own or of files, for kube-scheduler alone."""

import asyncio
import base64
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from structlog.testing import capture_logs
from tools.harness.api_server import StandInApiServer, running, working
from tools.harness.waiting import until

from gpu_device_plugin.controller.webhook_certificates import SECRET, Certificates
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.settings.controller_settings import (
    ControllerSettings,
    load_controller_settings,
)
from gpu_device_plugin.web.certificate_authority import (
    AUTHORITY,
    CLIENT,
    CLIENT_KEY,
    SERVING,
    renew,
)
from gpu_device_plugin.web.extender_server import (
    MUTATE,
    NAME_SCHEDULER,
    PREFIX,
    Callers,
    ExtenderServer,
    Handlers,
)

_NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)  # real: OpenSSL has no other
_DAY = datetime.timedelta(days=1)
_NAMES = ("localhost", "127.0.0.1")
_CLIENT = "gpu-device-plugin-scheduler"
_PATH = f"/api/v1/namespaces/kube-system/secrets/{SECRET}"


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: datetime.datetime) -> None:
        self.now = now

    def __call__(self) -> datetime.datetime:
        return self.now


def held(server: StandInApiServer) -> dict[str, bytes]:
    """What the Secret has."""
    return {k: base64.b64decode(v) for k, v in server.objects[_PATH]["data"].items()}


def a_client(values: Mapping[str, bytes], folder: Path, *, shows: bool = True) -> ssl.SSLContext:
    """The TLS of somebody who calls, with kube-scheduler's certificate or without one."""
    context = ssl.create_default_context(cadata=values[AUTHORITY].decode())
    if shows:
        pair = folder / "client.pem"
        pair.write_bytes(values[CLIENT] + values[CLIENT_KEY])
        context.load_cert_chain(pair)
    return context


@asynccontextmanager
async def serving(
    api: ApiServer, settings: ControllerSettings, clock: Clock
) -> AsyncIterator[tuple[Certificates, int]]:
    """A listener with such a certificate that answers every call."""
    kept = Certificates(settings, api, clock, look_seconds=0.02)
    handlers = Handlers(
        filter=lambda _: b"{}",
        prioritize=lambda _: b"[]",
        preempt=lambda _: b"{}",
        bind=_bound,
        inspect=_inspected,
        trouble=lambda: "",
        mutate=lambda _: b"{}",
        name_scheduler=lambda _: b"{}",
    )
    callers = Callers(settings.client_name, settings.webhook_client_name)
    server = ExtenderServer("127.0.0.1:0", handlers, 1 << 20, kept.tls, callers)
    await kept.start()
    await server.start()
    try:
        async with working(kept.run):
            yield kept, server.port
    finally:
        await server.stop()


async def _inspected(_: str | None) -> tuple[int, bytes]:
    return 200, b"{}"


async def _bound(_: bytes) -> bytes:
    return json.dumps({"Error": ""}).encode()


async def status(port: int, path: str, tls: ssl.SSLContext) -> int:
    """The status of one call, on a connection of its own."""
    connector = aiohttp.TCPConnector(ssl=tls, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://127.0.0.1:{port}{path}", data=b"{}") as response,
    ):
        return response.status


async def test_only_who_shows_the_schedulers_certificate_may_filter_and_bind(
    tmp_path: Path,
) -> None:
    """The API server shows none; what it asks is answered (R-541)."""
    async with (
        running() as (server, api),
        serving(api, ControllerSettings(), Clock(_NOW)) as (_, port),
    ):
        scheduler = a_client(held(server), tmp_path)
        anybody = a_client(held(server), tmp_path, shows=False)
        for verb in ("filter", "prioritize", "preempt", "bind"):
            assert await status(port, f"{PREFIX}/{verb}", scheduler) == 200
            assert await status(port, f"{PREFIX}/{verb}", anybody) == 403
        for path in (MUTATE, NAME_SCHEDULER):
            assert await status(port, path, anybody) == 200


async def test_where_the_api_server_shows_a_certificate_nobody_else_reaches_the_webhook(
    tmp_path: Path,
) -> None:
    """By an authority of its own, which decides nothing about who may bind."""
    made = renew({}, _NAMES, "kube-apiserver", _NOW)
    assert made is not None
    (tmp_path / "ca.crt").write_bytes(made[AUTHORITY])
    settings = ControllerSettings(
        webhook_client_name="kube-apiserver", webhook_client_ca_file=str(tmp_path / "ca.crt")
    )
    async with running() as (server, api), serving(api, settings, Clock(_NOW)) as (_, port):
        ours = held(server)
        asking = a_client({**made, AUTHORITY: ours[AUTHORITY]}, tmp_path)
        assert await status(port, MUTATE, asking) == 200
        assert await status(port, f"{PREFIX}/bind", asking) == 403
        for other in (a_client(ours, tmp_path), a_client(ours, tmp_path, shows=False)):
            for path in (MUTATE, NAME_SCHEDULER):
                assert await status(port, path, other) == 403
        assert await status(port, f"{PREFIX}/bind", a_client(ours, tmp_path)) == 200


def test_an_authority_for_the_webhook_without_a_name_is_refused() -> None:
    """Anyone who it has signed would be taken for the API server."""
    with pytest.raises(ConfigError, match="needs --webhook-client-name"):
        load_controller_settings({"webhook_client_ca_file": "ca.crt"}, {}, None)


async def test_a_certificate_of_the_same_authority_but_another_name_is_not_enough(
    tmp_path: Path,
) -> None:
    """An operator's authority signs for others too."""
    settings = ControllerSettings(client_name="system:kube-scheduler")
    async with running() as (server, api):
        made = renew({}, _NAMES, "somebody-else", _NOW)
        assert made is not None
        data = {key: base64.b64encode(value).decode() for key, value in made.items()}
        await server.put(_PATH, {"data": data})
        async with serving(api, settings, Clock(_NOW)) as (_, port):
            assert await status(port, f"{PREFIX}/bind", a_client(made, tmp_path)) == 403


async def test_why_there_is_no_certificate_yet_is_logged_once_for_each_reason() -> None:
    """However long the API server is away."""
    async with running() as (server, api):
        answers = ["503 etcd is slow", "403 no right"]
        server.fault = lambda _: refused(answers[0])
        with capture_logs() as logs:
            starting = asyncio.ensure_future(Certificates(ControllerSettings(), api).start())
            await until(lambda: len(server.requests) > 3)
            answers.pop(0)
            await until(lambda: len(server.requests) > 6)
            server.fault = lambda _: None
            await starting
        (first, second) = (log["error"] for log in logs if log["event"] == "no certificate yet")
    assert "503 etcd is slow" in first
    assert "403 no right" in second


def refused(text: str) -> web.Response:
    return web.Response(status=int(text[:3]), text=text)


async def test_replicas_that_start_together_share_one_certificate() -> None:
    """The first one's stands."""
    async with running() as (server, api):
        replicas = [Certificates(ControllerSettings(), api, Clock(_NOW)) for _ in range(4)]
        await asyncio.gather(*(each.start() for each in replicas))
        assert {each.authority for each in replicas} == {held(server)[AUTHORITY]}
        assert server.objects[_PATH]["type"] == "kubernetes.io/tls"


async def test_a_renewal_takes_effect_on_new_connections_and_breaks_none(tmp_path: Path) -> None:
    """One connection stays open over it; a new one gets the new certificate."""
    clock = Clock(_NOW - 250 * _DAY)
    async with running() as (server, api), serving(api, ControllerSettings(), clock) as (_, port):
        first = held(server)
        tls = a_client(first, tmp_path)
        url = f"https://127.0.0.1:{port}{PREFIX}/bind"
        connector = aiohttp.TCPConnector(ssl=tls, limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.post(url, data=b"{}") as response:
                assert response.status == 200
            clock.now = _NOW
            await until(lambda: held(server)[SERVING] != first[SERVING])
            async with session.post(url, data=b"{}") as response:
                assert response.status == 200
        now = held(server)
        loop = asyncio.get_running_loop()

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        async def is_shown() -> bool:
            return await loop.run_in_executor(None, shown) == now[SERVING].decode()

        await until(is_shown)
        assert await status(port, f"{PREFIX}/bind", tls) == 200


async def test_what_an_operator_put_on_the_secret_stays() -> None:
    """Labels, annotations and keys that we do not write."""
    async with running() as (server, api):
        meta = {"labels": {"team": "gpu"}, "namespace": "kube-system"}
        await server.put(_PATH, {"metadata": meta, "data": {"note": "aGk="}})
        await Certificates(ControllerSettings(), api, Clock(_NOW)).start()
        assert server.objects[_PATH]["metadata"]["labels"] == {"team": "gpu"}
        assert held(server)["note"] == b"hi"


async def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    """As cert-manager's are; while they do not fit together the former pair serves."""
    made = renew({}, _NAMES, _CLIENT, _NOW)
    later = renew({}, _NAMES, _CLIENT, _NOW)
    assert made is not None
    assert later is not None
    settings = ControllerSettings(
        tls_cert_file=str(tmp_path / "tls.crt"),
        tls_key_file=str(tmp_path / "tls.key"),
        client_ca_file=str(tmp_path / "ca.crt"),
    )
    for key in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / key).write_bytes(made[key])
    async with running() as (server, api), serving(api, settings, Clock(_NOW)) as (kept, port):
        assert await status(port, f"{PREFIX}/bind", a_client(made, tmp_path)) == 200
        (tmp_path / "tls.crt").write_bytes(later["tls.crt"])
        assert await status(port, f"{PREFIX}/bind", a_client(made, tmp_path)) == 200
        for key in ("tls.key", "ca.crt"):
            (tmp_path / key).write_bytes(later[key])
        await until(lambda: kept.authority == later[AUTHORITY])
        assert await status(port, f"{PREFIX}/bind", a_client(later, tmp_path)) == 200
        assert not server.seen("GET", "secrets")


async def test_files_that_are_not_there_are_named_at_the_start(tmp_path: Path) -> None:
    """By flag and path."""
    path = str(tmp_path / "none.crt")
    settings = ControllerSettings(tls_cert_file=path, tls_key_file=path, client_ca_file=path)
    async with running() as (_, api):
        with pytest.raises(ConfigError, match=r"--tls-cert-file '.*none.crt': No such file"):
            await Certificates(settings, api).start()


def test_a_certificate_that_lasts_is_left_alone_and_other_names_renew_it() -> None:
    """Nothing is written without need."""
    made = renew({}, _NAMES, _CLIENT, _NOW)
    assert made is not None
    assert renew(made, _NAMES, _CLIENT, _NOW + 200 * _DAY) is None
    other = renew(made, (*_NAMES, "controller.gpu.svc"), _CLIENT, _NOW)
    assert other is not None
    assert other[AUTHORITY] == made[AUTHORITY]


def test_another_name_of_the_caller_renews_its_certificate() -> None:
    """Else every call would be answered 403 until somebody deletes the Secret."""
    made = renew({}, _NAMES, _CLIENT, _NOW)
    other = renew(made or {}, _NAMES, "my-scheduler", _NOW)
    assert other is not None
    name = x509.load_pem_x509_certificate(other[CLIENT]).subject.rfc4514_string()
    assert name == "CN=my-scheduler"
    assert renew(other, _NAMES, "my-scheduler", _NOW) is None


@pytest.mark.parametrize("name", ["fd00:0:0::1", "FD00::1", "::ffff:10.0.0.1"])
def test_an_ipv6_address_however_it_is_written_is_certified_once(name: str) -> None:
    """Else each replica would make the Secret again every 30 s."""
    made = renew({}, [name], _CLIENT, _NOW)
    assert renew(made or {}, [name], _CLIENT, _NOW) is None


@pytest.mark.parametrize("broken", ["ca.crt", "ca.key", "tls.crt", "tls.key", "client.key"])
def test_what_cannot_be_read_is_made_again_as_a_whole(broken: str) -> None:
    """Half a set is of no use to anybody."""
    made = renew({}, _NAMES, _CLIENT, _NOW)
    assert made is not None
    again = renew({**made, broken: b"x"}, _NAMES, _CLIENT, _NOW)
    assert again is not None
    assert again[AUTHORITY] != made[AUTHORITY]


def test_a_new_authority_is_known_to_all_before_it_signs() -> None:
    """Over fifty years each certificate is signed by an authority of the set before it."""
    now, sets = _NOW, [renew({}, _NAMES, _CLIENT, _NOW)]
    while now < _NOW + 50 * 365 * _DAY:
        now += 30 * _DAY
        fresh = renew(sets[-1] or {}, _NAMES, _CLIENT, now)
        if fresh is None:
            continue
        known = x509.load_pem_x509_certificates((sets[-1] or {})[AUTHORITY])
        certificate = x509.load_pem_x509_certificate(fresh[SERVING])
        (signer,) = [each for each in known if each.subject == certificate.issuer]
        certificate.verify_directly_issued_by(signer)
        assert signer.not_valid_after_utc >= certificate.not_valid_after_utc
        assert len(x509.load_pem_x509_certificates(fresh[AUTHORITY])) <= 2
        sets.append(fresh)
    assert len({(each or {})[AUTHORITY] for each in sets}) > 4
