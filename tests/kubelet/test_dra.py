"""The kubelet's side of claims: it finds the driver by its socket, and asks for claims one by one."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from tests.kubelet.rig import until, until_the_moment
from tools.harness.claim_kubelet import ClaimKubelet

from gpu_device_plugin.domain.grants.claims import (
    AllocatedDevice,
    ClaimRef,
    DeviceHealth,
    PoolHealth,
    PreparedDevice,
)
from gpu_device_plugin.errors import DoesNotFitError
from gpu_device_plugin.kubelet._proto import drahealth_pb2
from gpu_device_plugin.kubelet.dra_servicer import HEALTH_NAMES
from gpu_device_plugin.kubelet.dra_sockets import ClaimServer


@dataclass
class SimpleClaims:
    """Prepares every claim but those named `full`."""

    prepared: dict[str, int] = field(default_factory=dict)
    sick: dict[str, str] = field(default_factory=dict)
    together: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(1))

    async def prepare(self, ref: ClaimRef) -> Sequence[PreparedDevice]:
        await self.together.wait()
        if ref.name == "full":
            raise DoesNotFitError("card 0 is full", reason="NoRoom")
        self.prepared[ref.uid] = self.prepared.get(ref.uid, 0) + 1
        of = AllocatedDevice("gpu-device-plugin", "n1", "gpu-0", "slice", "share-1")
        return [PreparedDevice(of, (f"gpu-device-plugin/slice={ref.uid}",))]

    async def unprepare(self, ref: ClaimRef) -> None:
        self.prepared.pop(ref.uid, None)

    def health(self) -> PoolHealth:
        sick = self.sick.get("gpu-0", "")
        return PoolHealth("n1", [DeviceHealth("gpu-0", sick), DeviceHealth("gpu-1", "")])


@pytest.fixture
def claims() -> SimpleClaims:
    return SimpleClaims()


@pytest.fixture
async def server(short_dir: Path, claims: SimpleClaims) -> AsyncIterator[ClaimServer]:
    """A driver that runs beside a kubelet's directory."""
    made = ClaimServer(short_dir, claims)
    task = asyncio.ensure_future(made.run())
    await until(lambda: ClaimKubelet(short_dir).registry_socket.exists())
    yield made
    task.cancel()
    await asyncio.wait({task})


async def test_the_kubelet_finds_the_driver_and_what_it_serves(
    short_dir: Path, server: ClaimServer
) -> None:
    kubelet = ClaimKubelet(short_dir)
    info = await kubelet.info()
    assert server.trouble
    await kubelet.register()

    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin",
        "gpu-device-plugin",
        ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"],
    )
    assert server.trouble == ""


async def test_a_claim_is_answered_with_its_devices_and_an_error_stays_with_its_claim(
    short_dir: Path,
    server: ClaimServer,  # noqa: ARG001 - serves
    claims: SimpleClaims,
) -> None:
    answers = await ClaimKubelet(short_dir).prepare("a", "full", "b")

    assert {uid: answer.error for uid, answer in answers.items()} == {
        "uid-a": "",
        "uid-full": "card 0 is full",
        "uid-b": "",
    }
    (device,) = answers["uid-a"].devices
    assert (device.pool_name, device.device_name, device.share_id) == ("n1", "gpu-0", "share-1")
    assert list(device.request_names) == ["slice"]
    assert list(device.cdi_device_ids) == ["gpu-device-plugin/slice=uid-a"]
    assert set(claims.prepared) == {"uid-a", "uid-b"}
    ended = await ClaimKubelet(short_dir).unprepare("a", "never-seen")
    assert {uid: answer.error for uid, answer in ended.items()} == {
        "uid-a": "",
        "uid-never-seen": "",
    }
    assert set(claims.prepared) == {"uid-b"}


async def test_the_claims_of_a_call_are_prepared_side_by_side(
    short_dir: Path,
    server: ClaimServer,  # noqa: ARG001 - serves
    claims: SimpleClaims,
) -> None:
    """A pod may have forty, each takes an answer of the API server, and the kubelet waits 45 s for all."""
    claims.together = asyncio.Barrier(3)
    answers = await ClaimKubelet(short_dir).prepare("a", "b", "c")
    assert [answers[f"uid-{name}"].error for name in "abc"] == ["", "", ""]


@pytest.mark.parametrize("which", ["plugins_registry", "plugins/gpu-device-plugin"])
async def test_a_socket_that_somebody_removes_is_there_again(
    short_dir: Path,
    server: ClaimServer,  # noqa: ARG001 - serves
    which: str,
) -> None:
    """The kubelet's directory may be emptied; the kubelet calls what appears there."""
    kubelet = ClaimKubelet(short_dir)
    await kubelet.register()
    (gone,) = (short_dir / which).glob("*.sock")
    before = gone.stat().st_ino, gone.stat().st_mtime_ns
    gone.unlink()
    await until(lambda: gone.exists() and (gone.stat().st_ino, gone.stat().st_mtime_ns) != before)
    await until(lambda: kubelet.registry_socket.exists())

    assert (await kubelet.prepare("a"))["uid-a"].error == ""


async def test_a_socket_that_a_killed_agent_left_is_replaced(
    short_dir: Path, claims: SimpleClaims
) -> None:
    for path in (
        "plugins/gpu-device-plugin/dra.sock",
        "plugins_registry/gpu-device-plugin-reg.sock",
    ):
        (short_dir / path).parent.mkdir(parents=True)
        (short_dir / path).write_text("")
    task = asyncio.ensure_future(ClaimServer(short_dir, claims).run())
    await until(lambda: ClaimKubelet(short_dir).registry_socket.is_socket())

    assert (await ClaimKubelet(short_dir).prepare("a"))["uid-a"].error == ""
    task.cancel()
    await asyncio.wait({task})
    assert not ClaimKubelet(short_dir).registry_socket.exists()


@pytest.mark.parametrize("which", ["plugins/gpu-device-plugin", "plugins_registry"])
async def test_a_driver_that_ends_while_it_starts_leaves_no_socket(
    short_dir: Path, claims: SimpleClaims, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet takes what lies there for a driver; gRPC stops no server whose start was cut off."""
    task = asyncio.ensure_future(ClaimServer(short_dir, claims).run())
    await until_the_moment(lambda: [*(short_dir / which).glob("*.sock")])
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert [*short_dir.glob("*/**/*.sock")] == []
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize("name", HEALTH_NAMES)
async def test_health_is_told_at_once_and_at_every_change(
    short_dir: Path, server: ClaimServer, claims: SimpleClaims, name: str
) -> None:
    pb = drahealth_pb2
    socket = await ClaimKubelet(short_dir).register()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        watch = channel.unary_stream(
            f"/{name}/NodeWatchResources",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )
        stream = watch(pb.NodeWatchResourcesRequest())
        first = await stream.read()
        claims.sick["gpu-0"] = "XID 79"
        server.tell_health()
        second = await stream.read()
        stream.cancel()

    assert [(d.device.device_name, d.health) for d in first.devices] == [
        ("gpu-0", pb.HEALTHY),
        ("gpu-1", pb.HEALTHY),
    ]
    assert [(d.health, d.message) for d in second.devices] == [
        (pb.UNHEALTHY, "XID 79"),
        (pb.HEALTHY, ""),
    ]
