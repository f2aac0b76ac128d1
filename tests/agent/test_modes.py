"""The node's labels decide what it offers; running pods are never pulled from under."""

import itertools
import json

from tools.harness.rig import CORE, COUNT, FOUR_CARDS, MEM, NODE, Rig, running_rig, slice_of, until

from gpu_device_plugin.domain.fractions.fraction import fraction_of

FOLLOW_SECONDS = 5
SWITCH_SECONDS = 10


async def test_an_empty_node_follows_its_label() -> None:
    """core_mem to cgpu: no compute resource any more (R-110)."""
    async with running_rig() as rig:
        await rig.set_labels(schedule="cgpu")
        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4}, FOLLOW_SECONDS)

        await until(lambda: rig.events("ModeSwitched"), FOLLOW_SECONDS)


async def test_a_switch_waits_for_the_pods_that_hold_slices_and_then_happens() -> None:
    """Refused with an Event that lists them; done within 10 s of the node being empty (R-107, R-502)."""
    async with running_rig() as rig:
        await rig.admit("holder", slice_of(2, 30))
        await rig.set_labels(schedule="cgpu")
        await until(lambda: rig.events("ModeSwitchRefused"), FOLLOW_SECONDS)
        assert "default/holder" in rig.events("ModeSwitchRefused")[0]["message"]
        assert (await rig.admit("more", slice_of(2, 30))).is_admitted
        await rig.delete(rig.uid("holder"))
        await rig.delete(rig.uid("more"))

        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4}, SWITCH_SECONDS)


async def test_a_kubelet_that_starts_does_not_empty_a_node_whose_switch_waits() -> None:
    """Its List is short at first; the pods hold their slices all the while."""
    async with running_rig() as rig:
        await rig.admit("holder", slice_of(2, 30))
        await rig.kubelet.start_container(rig.uid("holder"), "main-0")
        await rig.stop_agent()
        await rig.set_labels(schedule="cgpu")
        rig.kubelet.sources_ready = False
        await rig.kubelet.restart()
        await rig.serve()
        await until(lambda: rig.events("ModeSwitchRefused"), FOLLOW_SECONDS)
        listed = rig.kubelet.pod_resources.lists
        await until(lambda: rig.kubelet.pod_resources.lists >= listed + 3, 60)
        assert rig.allocatable() == FOUR_CARDS
        assert not rig.events("ModeSwitched")
        rig.kubelet.sources_ready = True
        await rig.delete(rig.uid("holder"))

        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4}, SWITCH_SECONDS)


async def test_an_unknown_label_keeps_the_old_mode_and_says_so() -> None:
    """A typing error takes nobody's resources away."""
    async with running_rig() as rig:
        await rig.set_labels(schedule="core-mem")
        await until(lambda: rig.events("UnknownMode"), FOLLOW_SECONDS)

        assert rig.allocatable() == FOUR_CARDS


async def test_a_mode_that_is_not_served_yet_offers_nothing_and_is_ready() -> None:
    """Mps is answered "not yet", by an Event at the start too; another mode ends it."""
    async with running_rig(mode="mps") as rig:
        code, text = await rig.page("readyz")
        await until(lambda: rig.events("ModeNotServedYet"), FOLLOW_SECONDS)

        assert (code, rig.allocatable()) == (200, {MEM: 0, CORE: 0, COUNT: 0})
        assert "mps" in text
        assert "not served yet" in text
        await rig.set_labels(schedule="cgpu")
        await until(lambda: rig.events("ModeNotServedYetOver"), SWITCH_SECONDS)


async def test_without_a_known_label_and_without_the_api_the_agent_waits() -> None:
    """It does not guess a mode; once the API answers it serves."""
    async with running_rig(is_started=False) as rig:
        await rig.api.stop()
        await rig.start_agent()
        await rig.until_page("waiting for the node's labels")
        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}
        await rig.api.start()

        await rig.until_offered(FOUR_CARDS, 20)


async def test_the_last_known_label_serves_while_the_api_is_away() -> None:
    """A restart of the agent during an outage of the API loses no capacity."""
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(schedule="cgpu")
        await rig.serve()
        await rig.stop_agent()
        await rig.api.stop()
        await rig.serve()

        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4})


async def test_placement_follows_its_label() -> None:
    """R-106, R-504: binpack puts both pods on one card, spread on two."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 10))
        await rig.admit("b", slice_of(3, 10))
        assert rig.card_of("a") == rig.card_of("b")
        await rig.set_labels(placement="spread")

        numbers = itertools.count()

        async def is_spread() -> bool:  # the label arrives by itself, soon
            name = f"c{next(numbers)}"
            assert (await rig.admit(name, slice_of(1, 5))).is_admitted
            card = rig.card_of(name)
            await rig.delete(rig.uid(name))
            return card != rig.card_of("a")

        await until(is_spread, 20)


async def test_a_label_bounds_the_pods_on_a_card_of_slices() -> None:
    """Mode share has no bound of its own; a wrong label is told, and changes nothing."""
    async with running_rig(mode="share") as rig:
        await rig.admit("a", {MEM: 2})
        await rig.set_labels(max_pod="1")
        numbers = itertools.count()

        async def is_elsewhere() -> bool:  # the label arrives by itself, soon
            name = f"b{next(numbers)}"
            assert (await rig.admit(name, {MEM: 1})).is_admitted
            card = rig.card_of(name)
            await rig.delete(rig.uid(name))
            return card != rig.card_of("a")

        await until(is_elsewhere, 20)
        await rig.set_labels(max_pod="few")
        await until(lambda: rig.events("BadMaxPods"), FOLLOW_SECONDS)
        assert "value(few) of max pod" in rig.events("BadMaxPods")[0]["message"]
        assert await is_elsewhere()


async def test_a_pods_own_placement_stands_over_its_nodes() -> None:
    """The node packs; a pod that names no policy is refused."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 10))
        spread = {"gpu-device-plugin/placement": "spread"}
        assert (await rig.admit("b", slice_of(2, 10), annotations=spread)).is_admitted
        assert rig.card_of("b") != rig.card_of("a")
        wrong = await rig.admit(
            "c", slice_of(2, 10), annotations={"gpu-device-plugin/placement": "tidy"}
        )
        assert "gpu-device-plugin/placement=tidy is not a known policy" in wrong.message


async def test_128_mib_units_are_served_in_every_mode() -> None:
    """R-404, R-405, R-407: 126 units on a V100, 16 of them 2 GiB; with isolation 16 pods a card."""
    async with running_rig(memory_unit="128MiB") as rig:
        await rig.until_offered({MEM: 4 * 126, CORE: 400, COUNT: 4})
        await rig.admit("a", slice_of(16, 30))
        grant = rig.grant("a")
        # floor(16160 x 16 / 126)
        assert (fraction_of(grant).unit_mib, grant.shares[0].memory_bytes) == (128, 2052 << 20)
        await rig.delete(rig.uid("a"))
        await rig.set_labels(schedule="cgpu")
        await rig.until_offered({MEM: 4 * 126, CORE: 0, COUNT: 4}, SWITCH_SECONDS)
        for number in range(17):
            assert (await rig.admit(f"p{number}", slice_of(1))).is_admitted
        assert len({rig.card_of(f"p{number}") for number in range(16)}) == 1
        assert rig.card_of("p16") != rig.card_of("p0")


async def test_a_unit_change_waits_for_the_pods_that_hold_slices() -> None:
    """R-403: the old unit goes on, an Event lists the pods."""
    async with running_rig(mode="share") as rig:
        await check_that_a_unit_waits(rig, FOLLOW_SECONDS, SWITCH_SECONDS)


async def check_that_a_unit_waits(rig: Rig, follow_seconds: float, switch_seconds: float) -> None:
    """128 MiB instead of 1 GiB, on four V100 in mode share: refused while a pod holds a slice."""
    await rig.admit("holder", slice_of(2))
    await rig.restart_agent(mode="share", memory_unit="128MiB")
    await until(lambda: rig.events("UnitSwitchRefused"), follow_seconds)
    assert "default/holder" in rig.events("UnitSwitchRefused")[0]["message"]
    assert rig.kubelet.allocatable(MEM) == 60
    await rig.delete(rig.uid("holder"))

    await rig.until_offered({MEM: 4 * 126, CORE: 0, COUNT: 4}, switch_seconds)


async def test_a_unit_change_waits_for_word_of_the_pods_whose_grants_were_lost() -> None:
    """An empty ledger is not an empty node; the kubelet says who holds slices."""
    async with running_rig(mode="share") as rig:
        await rig.admit("holder", slice_of(2))
        await rig.stop_agent()
        for path in rig.state.glob("grants*"):
            path.unlink()
        await rig.serve(mode="share", memory_unit="128MiB")

        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4})
        await until(lambda: rig.events("UnitSwitchRefused"), 10)
        assert (
            fraction_of(rig.grant("holder")).unit_mib,
            fraction_of(rig.grant("holder")).mem_units,
        ) == (1024, 2)


async def test_another_plugin_on_the_same_cards_keeps_us_from_offering_them() -> None:
    """Nothing is registered, an Event says why, not ready; it is over when the other is gone (R-501)."""
    async with running_rig(is_started=False) as rig:
        node = rig.api.objects[f"/api/v1/nodes/{NODE}"]
        foreign = {**node, "status": {"capacity": {"nvidia.com/gpu": "4"}, "nodeInfo": {}}}
        await rig.api.put(f"/api/v1/nodes/{NODE}", foreign)
        await rig.start_agent()
        await rig.until_page("nvidia.com/gpu: 4")
        await until(lambda: rig.events("OtherPlugin"), FOLLOW_SECONDS)
        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}
        await rig.set_labels()

        await rig.until_offered(FOUR_CARDS, 20)


async def test_another_plugin_on_a_disabled_node_is_no_fault_until_the_node_is_enabled() -> None:
    """Moving in begins with `disabled` beside the plugin of before; no alert is to fire."""
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(schedule="disabled")
        foreign = dict(rig.api.objects[f"/api/v1/nodes/{NODE}"])
        foreign["status"] = {"allocatable": {"nvidia.com/gpu": "4"}, "capacity": {}}
        await rig.api.put(f"/api/v1/nodes/{NODE}", foreign)
        await rig.serve()
        assert "OtherPlugin" not in (await rig.page("metrics"))[1]
        enabled = json.loads(json.dumps(rig.api.objects[f"/api/v1/nodes/{NODE}"]))
        enabled["metadata"]["labels"]["ack.node.gpu.schedule"] = "core_mem"
        await rig.api.put(f"/api/v1/nodes/{NODE}", enabled)
        await rig.until_metric("node_fault{", 'reason="OtherPlugin"} 1.0')
        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}
        enabled["metadata"]["labels"]["ack.node.gpu.schedule"] = "disabled"
        await rig.api.put(f"/api/v1/nodes/{NODE}", enabled)
        await rig.until_ready()

        async def is_over() -> bool:
            return "OtherPlugin" not in (await rig.page("metrics"))[1]

        await until(is_over)  # all who ask within 2 s get one page


async def test_a_driver_upgrade_is_an_event_and_the_node_serves_until_the_agent_leaves() -> None:
    """Each state of the operator's walk once, and that it is over."""
    async with running_rig() as rig:
        path, state = f"/api/v1/nodes/{NODE}", "nvidia.com/gpu-driver-upgrade-state"
        for step in ("drain-required", "upgrade-done"):
            node = json.loads(json.dumps(rig.api.objects[path]))
            node["metadata"].setdefault("labels", {})[state] = step
            await rig.api.put(path, node)
            if step == "drain-required":
                await until(lambda: rig.events("DriverUpgrade"), 10)
                assert step in rig.events("DriverUpgrade")[0]["message"]
                assert rig.allocatable()[MEM] == 60
        await until(lambda: rig.events("DriverUpgradeOver"), 10)


async def test_what_the_node_has_stands_in_labels_and_an_annotation() -> None:
    """R-510; no admission waits for it."""
    async with running_rig() as rig:
        path = f"/api/v1/nodes/{NODE}"
        await until(lambda: "gpu-device-plugin/cards" in rig.annotations(path), 10)
        labels = rig.api.objects[path]["metadata"]["labels"]

        assert labels["aliyun.accelerator/nvidia_count"] == "4"
        assert labels["aliyun.accelerator/nvidia_mem"] == "16160MiB"
        assert labels["aliyun.accelerator/nvidia_name"] == "Tesla-V100-SXM2-16GB"
        assert labels["gpu-device-plugin/driver-version"] == "450.102.04"


async def test_a_pods_real_slice_stands_in_its_annotations() -> None:
    """R-540: the second generation, and the first one for older tools."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        path = "/api/v1/namespaces/default/pods/p"
        key = "scheduler.framework.gpushare.allocation"
        await until(lambda: key in rig.annotations(path), 10)

        assert rig.annotations(path)[key] == '{"0":{"0":2}}'
        assert rig.annotations(path)["ALIYUN_COM_GPU_MEM_IDX"] == "0"


async def test_without_a_label_the_operators_mode_counts_at_every_start() -> None:
    """`--mode` is for nodes without a label, and not for the first start only."""
    async with running_rig() as rig:
        await rig.restart_agent(mode="cgpu")
        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4})
        await rig.set_labels(schedule="share")
        await until(lambda: len(rig.events("ModeSwitched")) == 2, 10)
        await rig.stop_agent()
        await rig.set_labels()  # gone while nobody watched: the remembered one is no news
        await rig.start_agent(mode="core_mem")

        await rig.until_offered(FOUR_CARDS)
