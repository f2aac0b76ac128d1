"""Registration against the stand-in kubelet: its order, its words, its one slot a name."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.kubelet.rig import MEM, until
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import KubeletTimes

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.registration import register


class RawPlugin:
    """A plugin of bare messages: three devices, and options that may fail."""

    def __init__(self, socket: Path, *, options_fail: bool = False) -> None:
        self.listened = asyncio.Event()
        self.ended = asyncio.Event()
        self.close_list = asyncio.Event()
        self._options_fail = options_fail
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "v1beta1.DevicePlugin",
                    {
                        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                            self._options, None, pb.DevicePluginOptions.SerializeToString
                        ),
                        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                            self._list, None, pb.ListAndWatchResponse.SerializeToString
                        ),
                    },
                ),
            )
        )
        self._server.add_insecure_port(f"unix:{socket}")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)
        # A server that is collected after its event loop has closed complains.
        del self._server

    async def _options(self, _request: Any, context: Any) -> pb.DevicePluginOptions:
        if self._options_fail:
            await context.abort(grpc.StatusCode.INTERNAL, "no options today")
        return pb.DevicePluginOptions()

    async def _list(self, _request: Any, context: Any) -> None:
        try:
            devices = [pb.Device(ID=f"d{i}", health="Healthy") for i in range(3)]
            await context.write(pb.ListAndWatchResponse(devices=devices))
            self.listened.set()
            await self.close_list.wait()
        finally:
            self.ended.set()


async def refused(kubelet: StandInKubelet, **fields: Any) -> str:
    """The words with which the kubelet refuses this registration."""
    async with grpc.aio.insecure_channel(f"unix:{kubelet.plugin_dir / 'kubelet.sock'}") as channel:
        call: Any = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(pb.RegisterRequest(**fields))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return str(caught.value.details())


async def test_another_version_or_a_bad_name_is_refused_in_the_kubelets_words(
    kubelet: StandInKubelet,
) -> None:
    """Before anything is dialled."""
    await kubelet.start()

    assert await refused(kubelet, version="v1", endpoint="x", resource_name=MEM) == (
        'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )
    assert (
        await refused(kubelet, version="v1beta1", endpoint="x", resource_name="nodomain")
        == 'the ResourceName "nodomain" is invalid'
    )


async def test_a_socket_that_nobody_serves_is_refused_after_the_dial_limit(short_dir: Path) -> None:
    """Serve first, then register."""
    kubelet = StandInKubelet(short_dir, times=KubeletTimes(dial=0.1))
    await kubelet.start()
    words = await refused(kubelet, version="v1beta1", endpoint="nobody", resource_name=MEM)
    await kubelet.stop()

    assert words == "failed to dial device plugin: context deadline exceeded"


async def test_failing_options_fail_the_registration(kubelet: StandInKubelet) -> None:
    """GetDevicePluginOptions is asked inside Register; our client tells its words."""
    await kubelet.start()
    plugin = RawPlugin(kubelet.plugin_dir / "raw.sock", options_fail=True)
    await plugin.start()
    with pytest.raises(KubeletError, match=r"did not register .*gpu-mem.*no options today"):
        await register(
            kubelet.plugin_dir / "kubelet.sock", Resource.MEM, "raw.sock", pb.DevicePluginOptions()
        )
    await plugin.stop()

    assert kubelet.capacity(MEM) == 0


@pytest.mark.parametrize("keys_by_socket", [False, True])
async def test_the_end_of_an_old_stream_cuts_the_new_one_on_old_kubelets_only(
    kubelet: StandInKubelet, *, keys_by_socket: bool
) -> None:
    """Two registrations of one name: #121994, and #135437 which mends it."""
    kubelet.registry.keys_by_socket = keys_by_socket
    await kubelet.start()
    plugins = [RawPlugin(kubelet.plugin_dir / f"{i}.sock") for i in range(2)]
    for i, plugin in enumerate(plugins):
        await plugin.start()
        await register(
            kubelet.plugin_dir / "kubelet.sock", Resource.MEM, f"{i}.sock", pb.DevicePluginOptions()
        )
        await until(plugin.listened.is_set)
    await until(lambda: kubelet.allocatable(MEM) == 3)
    plugins[0].close_list.set()
    if not keys_by_socket:
        await until(lambda: kubelet.allocatable(MEM) == 0)
        await until(plugins[1].ended.is_set)
    else:
        await until(lambda: len(kubelet.registry._tasks) == 1)
    remaining = kubelet.allocatable(MEM)
    for plugin in plugins:
        await plugin.stop()

    assert remaining == (3 if keys_by_socket else 0)


async def test_a_list_that_stays_closed_is_never_asked_for_again(kubelet: StandInKubelet) -> None:
    """Coming back is the plugin's task."""
    await kubelet.start()
    plugin = RawPlugin(kubelet.plugin_dir / "raw.sock")
    await plugin.start()
    await register(
        kubelet.plugin_dir / "kubelet.sock", Resource.MEM, "raw.sock", pb.DevicePluginOptions()
    )
    await until(lambda: kubelet.allocatable(MEM) == 3)
    plugin.close_list.set()
    await until(lambda: kubelet.allocatable(MEM) == 0)
    capacity = kubelet.capacity(MEM)
    await plugin.stop()

    assert capacity == 3
    assert len(kubelet.calls) == 1


async def test_a_socket_that_its_plugin_removes_meanwhile_is_no_matter_to_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that sees its list end cleans up while the next kubelet does."""
    kubelet = StandInKubelet(tmp_path)
    kubelet.plugin_dir.mkdir(parents=True)
    (kubelet.plugin_dir / "p.sock").touch()

    def gone_once_seen(path: Path) -> bool:
        path.unlink()
        return True

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_socket", gone_once_seen)
        await kubelet.start()
    await kubelet.stop()
