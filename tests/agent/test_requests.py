"""A pod gets its slice, or a text that says why not."""

import json
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from tools.harness.kubelet_book import Held
from tools.harness.kubelet_pods import StandInPod
from tools.harness.rig import CORE, COUNT, MEM, Rig, command, running_rig, slice_of, until

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, VERSION
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.container_edits import CONFIG_DIR
from gpu_device_plugin.domain.grants.holdings_annotation import HOLDINGS_ANNOTATION
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb


async def test_four_v100_cards_are_60_400_4() -> None:
    """R-108, R-109, R-401: the documented figures, as the kubelet counts them."""
    async with running_rig() as rig:
        await rig.until_offered({MEM: 60, CORE: 400, COUNT: 4})


async def test_the_documented_slice_is_two_fifteenths_of_one_card_and_30_percent() -> None:
    """R-101, R-129, R-550: environment, limits file and mounts of the source's pod."""
    async with running_rig() as rig:
        assert (await rig.admit("job", slice_of(2, 30))).is_admitted
        start = await rig.kubelet.start_container(rig.uid("job"), "main-0")
        grant = rig.grant("job")
        limits = rig.run / "slices" / grant.slice_id / "config" / "limits"

        assert start.env == {
            "NVIDIA_VISIBLE_DEVICES": grant.devices[0],
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
            "ALIYUN_COM_GPU_MEM_POD": "2",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        assert limits.read_text().splitlines() == [
            "version=1",
            f"slice={grant.slice_id}",
            "policy=fixed",
            f"device={grant.devices[0]} memory_bytes={2154 * 1024**2} core_percent=30",
        ]
        assert start.mounts["/run/gpu-device-plugin/config"] == (str(limits.parent), True)
        assert start.mounts["/etc/ld.so.preload"][1]


async def test_three_jobs_of_30_percent_share_a_card_and_a_fourth_goes_to_the_next() -> None:
    """R-119: 3 x 30 % fit one card, a fourth does not."""
    async with running_rig() as rig:
        for name in ("a", "b", "c", "d"):
            assert (await rig.admit(name, slice_of(2, 30))).is_admitted
        cards = [rig.card_of(name) for name in ("a", "b", "c", "d")]

        assert cards[0] == cards[1] == cards[2] != cards[3]


async def test_a_pods_containers_share_a_card_and_its_environment_counts_both() -> None:
    """`_POD` is the sum over app containers, `_CONTAINER` the container's own."""
    async with running_rig() as rig:
        assert (await rig.admit("two", slice_of(2, 10), slice_of(3, 20))).is_admitted
        start = await rig.kubelet.start_container(rig.uid("two"), "main-1")

        assert rig.card_of("two", "main-0") == rig.card_of("two", "main-1")
        assert start.env["ALIYUN_COM_GPU_MEM_POD"] == "5"
        assert start.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        pytest.param(
            slice_of(16, 30), ["16", "largest free slice is 15 units", "16160 MiB"], id="room"
        ),
        pytest.param(slice_of(2, 7), ["multiple of 5", "7"], id="percentage"),
        pytest.param(slice_of(2), ["core_mem", "ack.node.gpu.schedule"], id="memory only"),
        pytest.param(slice_of(0, 30), [MEM], id="compute only"),
        pytest.param(slice_of(2, 30, 1), ["label", COUNT], id="gpu-count as a resource"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_the_reason(
    limits: dict[str, int], words: list[str]
) -> None:
    """The kubelet shows our text: pod, node, what was asked, the rule, the cure."""
    async with running_rig() as rig:
        refused = await rig.admit("greedy", limits)

        assert not refused.is_admitted
        for word in ("default/greedy", "n1", *words):
            assert word in refused.message


async def test_a_refusal_is_an_event_on_the_pod_and_a_line_of_why() -> None:
    """Anyone who looks at the pod later finds the reason."""
    async with running_rig() as rig:
        await rig.admit("greedy", slice_of(16, 30))
        await until(lambda: rig.events("NoRoom"), 10)

        assert rig.events("NoRoom")[0]["involvedObject"]["name"] == "greedy"
        code, text = await command(rig, "why", "default/greedy")
        assert code == 0
        assert [line.split(":")[0].strip() for line in text.splitlines() if "no room" in line] == [
            f"card {index}   no room" for index in range(4)
        ]


async def test_why_of_a_pod_that_nobody_knows_ends_with_3() -> None:
    """The text says what to ask for instead."""
    async with running_rig() as rig:
        code, text = await command(rig, "why", "default/nobody")

        assert code == 3
        assert "pod default/nobody: nothing has been decided" in text
        assert "ask for its owner" in text


async def test_eight_units_on_two_cards_by_label_of_a_cgpu_node() -> None:
    """R-520: 8 units and label 2 are 4 units on each of two cards."""
    async with running_rig(mode="cgpu") as rig:
        labels = {"aliyun.com/gpu-count": "2"}
        assert (await rig.admit("wide", slice_of(8), labels=labels)).is_admitted
        start = await rig.kubelet.start_container(rig.uid("wide"), "main-0")

        assert len(rig.grant("wide").devices) == 2
        assert start.env["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
        assert start.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
        assert len(start.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2


async def test_an_init_container_hands_equal_units_on() -> None:
    """The kubelet gives the same units without asking; the app container gets its own slice."""
    async with running_rig() as rig:
        assert (await rig.admit("p", slice_of(4, 30), init=[slice_of(4, 30)])).is_admitted
        init, main = rig.grant("p", "init-0"), rig.grant("p", "main-0")

        assert (init.ids(Resource.MEM), init.ids(Resource.CORE)) == (
            main.ids(Resource.MEM),
            main.ids(Resource.CORE),
        )
        assert init.slice_id != main.slice_id


async def test_a_sidecar_keeps_units_beside_those_that_an_init_container_hands_on() -> None:
    """The kubelet holds 11 units of the pod: that is published, and the next pods go where they fit."""
    async with running_rig() as rig:
        sidecar, init = slice_of(3, 20), slice_of(8, 40)
        mixed = await rig.admit("q", slice_of(2, 10), sidecars=[sidecar], init=[init])
        assert mixed.is_admitted, mixed.message
        assert len(frozenset().union(*(g.ids(MEM) for g in rig.grants()))) == 11

        async def is_told() -> bool:
            told = json.loads(rig.annotations().get(HOLDINGS_ANNOTATION, "{}"))
            return bool(told) and list(told["pods"].values()) == [{"slices": {"0": [11, 60]}}]

        await until(is_told, 10, lambda: rig.annotations().get(HOLDINGS_ANNOTATION))
        for number in range(3):
            beside = await rig.admit(f"r{number}", slice_of(5, 30))
            assert beside.is_admitted, beside.message


async def test_each_container_of_a_static_pod_gets_its_slice() -> None:
    """Its mirror comes to the API when it has been admitted: until then only List names it."""
    async with running_rig() as rig:
        pod = rig.pod("static", *(slice_of(2 + n, 10) for n in range(3)))
        for _ in range(2):
            admission = await rig.kubelet.admit(pod)
            assert admission.is_admitted, admission.message
        mirror = rig.object_of(pod)
        mirror["metadata"] |= {
            "uid": "uid-mirror",
            "annotations": {"kubernetes.io/config.mirror": pod.uid},
        }
        await rig.api.put("/api/v1/namespaces/default/pods/static", mirror)
        for number in range(3):
            start = await rig.kubelet.start_container(pod.uid, f"main-{number}")
            assert start.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(2 + number)
        assert len({grant.devices for grant in rig.grants()}) == 1


async def test_a_refusal_speaks_of_nothing_that_the_pod_does_not_have() -> None:
    """The kubelet has fewer units of a card than the grants say; the first call was for compute."""
    async with running_rig() as rig:
        strange = StandInPod("default", "strange", "uid-strange", ())
        rig.kubelet.pods[strange.uid] = strange
        book = rig.kubelet.registry.book
        held = Held(frozenset(unit_ids(MEM, 0, 10)), pb.ContainerAllocateResponse())
        book.held[strange.uid, "c", MEM] = held
        book.recount()
        told = []
        for number in range(8):
            admission = await rig.admit(f"p{number}", slice_of(12, 30))
            told += [] if admission.is_admitted else [admission.message]
            await rig.delete(rig.uid(f"p{number}"))
        assert "card 0: 5 of 15 units free" in told[0]
        assert "card 1: fits, but its other resource is on another card" in told[0]


async def test_a_pod_that_wants_its_card_alone_has_it_alone() -> None:
    """R-528: an otherwise empty card, that stays so, over a restart too; another word is refused."""
    label = {"ack.gpushare.placement": "require-whole-device"}
    async with running_rig() as rig:
        await rig.admit("first", slice_of(2, 10))
        assert (await rig.admit("alone", slice_of(2, 10), labels=label)).is_admitted
        assert rig.card_of("alone") != rig.card_of("first")
        await rig.restart_agent()
        for name in ("a", "b", "c"):
            assert (await rig.admit(name, slice_of(2, 10), labels=label)).is_admitted == (
                name != "c"
            )
        text = (await rig.admit("d", slice_of(14, 10))).message
        assert "card 1: held by a pod that wants no other beside it" in text
        wrong = await rig.admit("wrong", slice_of(1, 5), labels={"ack.gpushare.placement": "whole"})
        assert "label ack.gpushare.placement=whole is not a known placement" in wrong.message


async def test_the_seventeenth_pod_of_a_cgpu_card_goes_elsewhere_without_isolation_too() -> None:
    """R-405: at most 16 pods a card, which the mode decides."""
    async with running_rig("h200", mode="cgpu", isolation="off") as rig:
        for number in range(17):
            assert (await rig.admit(f"p{number}", slice_of(1))).is_admitted
        cards = {rig.card_of(f"p{number}") for number in range(16)}

        assert len(cards) == 1
        assert rig.card_of("p16") not in cards


@pytest.mark.parametrize("access", ["envvar", "device-specs", "volume-mounts", "cdi-cri"])
async def test_cards_reach_containers_the_way_the_operator_chose(access: str) -> None:
    """R-720, R-721: by environment, by device nodes beside it, by mounts, or by CDI name."""
    passes_nodes = access == "device-specs"
    strategy = "envvar" if passes_nodes else access
    async with running_rig(device_list_strategy=strategy, pass_device_specs=passes_nodes) as rig:
        await rig.admit("p", slice_of(2, 30))
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")
        uuid = rig.card_of("p")
        devices_dir = "/var/run/nvidia-container-devices"
        visible = {"volume-mounts": devices_dir, "cdi-cri": "void"}.get(access, uuid)

        assert start.env["NVIDIA_VISIBLE_DEVICES"] == visible
        assert ("/dev/nvidia0" in start.devices) is (access == "device-specs")
        assert (f"{devices_dir}/{uuid}" in start.mounts) is (access == "volume-mounts")
        assert start.cdi_names == ({f"nvidia.com/gpu={uuid}"} if access == "cdi-cri" else set())


async def test_a_repeated_allocate_gives_the_same_answer() -> None:
    """The kubelet may ask again for what it gave; the slice stays the same."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        before = rig.grants()
        first = await allocate(rig, rig.grant("p").ids(Resource.MEM))
        second = await allocate(rig, rig.grant("p").ids(Resource.MEM))

        assert first == second
        assert first.container_responses[0].envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
        assert rig.grants() == before


async def test_a_container_does_not_start_on_units_that_the_kubelet_says_are_anothers() -> None:
    """PreStart is the second guard behind the identity found at admission, where no mounts tell whose a slice is."""
    async with running_rig(isolation="off") as rig:
        await _swap_two_containers(rig)
        with pytest.raises(Exception, match="create the pod again"):
            await rig.kubelet.start_container(rig.uid("p"), "main-0")


async def test_a_slice_is_the_containers_that_has_it_mounted_whatever_the_grants_say() -> None:
    async with running_rig() as rig:
        await _swap_two_containers(rig)
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        (config, _) = start.mounts[CONFIG_DIR]
        assert rig.grant("p", "main-0").slice_id in config


async def _swap_two_containers(rig: Rig) -> None:
    """The grants of two containers of a pod have each other's name when the agent starts."""
    await rig.admit("p", slice_of(2, 30), slice_of(3, 20))
    await rig.stop_agent()
    for old, new in ((b"main-0", b"swap"), (b"main-1", b"main-0"), (b"swap", b"main-1")):
        _rewrite(rig, old, new)
    await rig.serve()


def _rewrite(rig: Rig, old: bytes, new: bytes) -> None:
    """Put other grants on disk, sealed as the agent seals them."""
    kept = SealedFile(rig.state / KIND, KIND, VERSION)
    sealed = kept.read()
    assert sealed is not None
    kept.write([sealed.payload.replace(old, new)], sealed.boot_id)


async def allocate(rig: Rig, ids: Iterable[str]) -> Any:
    """One of our Allocate calls, as the kubelet would make it."""
    (socket,) = rig.kubelet.plugin_dir.glob("*-gpu-mem-*.sock")
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.AllocateResponse.FromString,
        )
        container = pb.ContainerAllocateRequest(devices_ids=ids)
        return await call(pb.AllocateRequest(container_requests=[container]))


async def test_a_bad_percentage_is_refused_without_the_pods_text_whichever_comes_first() -> None:
    """The size of each call is known even where the API is not; the order is the kubelet's die."""
    async with running_rig() as rig:
        await rig.api.stop()
        for number in range(6):
            refused = await rig.kubelet.admit(rig.pod(f"odd{number}", slice_of(2, 7)))

            assert not refused.is_admitted
            assert "multiple of 5" in refused.message


async def test_more_cards_than_the_node_has_are_refused_in_these_words() -> None:
    """Nine cards of a node of four."""
    async with running_rig(mode="cgpu") as rig:
        refused = await rig.admit("wide", slice_of(9), labels={"aliyun.com/gpu-count": "9"})

        assert "the node has 4 cards, 9 are asked" in refused.message
