"""A card that fails takes out itself and nobody else, and comes back by the rules."""

import json
import re
from pathlib import Path

import pytest
from tests.nvml.other_driver import SECOND, OtherDriver
from tools.harness.rig import CORE, COUNT, FOUR_CARDS, MEM, command, running_rig, slice_of, until

from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.simulation import driver_library

NEEDS_RESET_BUT_ASKS_NOTHING = 8  # not in the table of XIDs
THREE = {MEM: 45, CORE: 300, COUNT: 3}


async def test_an_xid_takes_its_card_out_and_clean_probes_bring_it_back() -> None:
    """XID 79 on card 1: capacity stays, allocatable falls; Event and metric tell (R-709)."""
    async with running_rig(is_hasty=True, recovery_seconds=1) as rig:
        rig.cards.lose(1)
        await rig.until_offered(THREE)
        assert rig.kubelet.capacity(MEM) == 60
        await until(lambda: rig.events("XID79") or rig.events("Lost"), 10)
        _, metrics = await rig.page("metrics")
        assert 'gpu_device_plugin_card_healthy{card="1"' in metrics
        rig.cards.restore(1)

        await rig.until_offered(FOUR_CARDS, 30)


async def test_the_annotation_of_cards_says_why_a_card_is_out_and_since_when() -> None:
    """An Event says so too, and is gone after an hour."""
    told = r'"healthy":false,"fault":"XID8 since 20\d\d-\d\d-\d\dT[\d:]{8}Z"'
    async with running_rig() as rig:
        rig.cards.xid(1, NEEDS_RESET_BUT_ASKS_NOTHING)
        await until(lambda: re.search(told, rig.annotations().get(CARDS_ANNOTATION, "")), 20)


async def test_a_lost_card_stays_in_the_annotation_of_cards_and_an_unplugged_one_leaves_it() -> (
    None
):
    """NVML opened anew tells not even its UUID, whether the agent has begun with it or found it lost."""
    async with running_rig(is_hasty=True) as rig:
        rig.cards.lose(1)
        rig.cards.unplug(3)

        def named() -> list[tuple[int, bool]]:
            told = rig.annotations().get(CARDS_ANNOTATION, '{"cards":[]}')
            cards = json.loads(told)["cards"]
            return [(card["index"], card["healthy"]) for card in cards]

        there = [(0, True), (1, False), (2, True)]
        await until(lambda: named() == there, 20, named)
        await rig.restart_agent()
        rig.cards.unplug(2)  # what the annotation says without it is of the agent that runs now
        await until(lambda: named() == [(0, True), (1, False)], 20, named)
        assert rig.kubelet.capacity(MEM) == 45


async def test_a_card_that_fails_between_the_kubelets_two_calls_gets_no_pod() -> None:
    """GetPreferredAllocation chose it while it was well; Allocate refuses."""
    async with running_rig() as rig:
        pod = rig.pod("late", slice_of(2, 30))
        await rig.api.put("/api/v1/namespaces/default/pods/late", rig.object_of(pod))
        rig.kubelet.pods[pod.uid] = pod
        link = rig.kubelet.registry.links[MEM]
        chosen = await link.ask_preferred(unit_ids(MEM, 0, 15), (), 2)
        rig.cards.lose(0)
        await rig.until_offered(THREE)

        with pytest.raises(KubeletError, match="became unhealthy"):
            await link.allocate(tuple(chosen))
        assert rig.grants() == []


async def test_application_xids_take_nothing_out() -> None:
    """13, 31, 43, 45, 68 and 109 are a program's own fault; the real one after them is seen."""
    async with running_rig() as rig:
        for code in (13, 31, 43, 45, 68, 109):
            rig.cards.xid(0, code)
        rig.cards.xid(3, 48)
        await rig.until_offered(THREE)

        await rig.until_metric('card_healthy{card="3"', " 0.0")
        for card in (0, 1, 2):
            await rig.until_metric(f'card_healthy{{card="{card}"', " 1.0")


async def test_informational_xids_are_told_and_take_nothing_out() -> None:
    """63 and 92: an Event and a metric, and the card serves on."""
    async with running_rig() as rig:
        for card, code in ((1, 63), (2, 92)):
            rig.cards.xid(card, code)
            await until(lambda code=code: rig.events(f"XID{code}"), 10)
            await rig.until_metric(f'card_changes_total{{reason="XID{code}"', " 1.0")

        assert rig.allocatable() == FOUR_CARDS


async def test_a_card_that_needs_a_reset_waits_for_it_over_a_restart_of_the_agent() -> None:
    """XID 48, whose Event has the cure: no clean probe brings it back; a reset does (R-709)."""
    async with running_rig(is_hasty=True, recovery_seconds=1) as rig:
        rig.cards.xid(2, 48)
        await rig.until_offered(THREE)
        await until(lambda: rig.events("XID48"), 10)
        assert "end the agent and reset the card" in str(rig.events("XID48"))
        await rig.restart_agent(recovery_seconds=1)
        await rig.until_offered(THREE)
        rig.cards.restore(2)

        await rig.until_offered(FOUR_CARDS, 30)


async def test_a_card_of_which_nvml_gives_no_xids_is_told_once(tmp_path: Path) -> None:
    """In the log, by an Event and in the metrics."""
    driver = OtherDriver(tmp_path)
    driver.put("noxids1")
    async with running_rig(is_started=False) as rig:
        await rig.start_agent(nvml_library=driver.library)
        await until(lambda: bool(rig.events("XidsNotGiven")), 20)
        await rig.until_metric("card_changes_total{", f'uuid="{SECOND}"}} 1.0')
        (event,) = rig.events("XidsNotGiven")

        assert event["type"] == "Normal"
        assert f"{SECOND}: NVML gives no XIDs of it" in event["message"]
        assert "XidsNotGiven" in rig.log.read_text()


async def test_the_recover_command_brings_a_card_back() -> None:
    """`gpu-device-plugin recover 2`: the operator has reset the card."""
    async with running_rig(is_hasty=True) as rig:
        rig.cards.xid(2, NEEDS_RESET_BUT_ASKS_NOTHING)
        await rig.until_offered(THREE)

        async def is_recovered() -> bool:  # once a probe has told that NVML asks for nothing
            return (await command(rig, "recover", "2"))[0] == 0

        await until(is_recovered, 20)
        await rig.until_offered(FOUR_CARDS)
        code, text = await command(rig, "recover", "9")

        assert code == 3
        assert "no card '9'" in text


async def test_a_card_that_still_asks_for_a_reset_is_not_recovered() -> None:
    """XID 48, after which NVML asks for a reset: the answer says so, the card stays out."""
    async with running_rig(is_hasty=True, recovery_seconds=1) as rig:
        rig.cards.xid(2, 48)
        await rig.until_offered(THREE)
        answers: list[tuple[int, str]] = []

        async def is_explained() -> bool:
            answers.append(await command(rig, "recover", "2"))
            return "a reset of the card" in answers[-1][1]

        await until(is_explained, 20, lambda: answers)
        assert {code for code, _ in answers} == {1}
        assert rig.allocatable() == THREE
        rig.cards.restore(2)
        await rig.until_offered(FOUR_CARDS, 30)


async def test_a_card_that_asks_for_a_reset_without_any_xid_is_out() -> None:
    """The XID came while nobody listened; NVML still says what it wants."""
    async with running_rig(is_hasty=True, is_started=False) as rig:
        driver_library.set_fields(rig.cards.state, ["cards.1.recovery_action=1"])
        await rig.start_agent()
        await until(lambda: rig.events("RecoveryAsked"), 20)

        await rig.until_offered(THREE)


async def test_a_card_that_is_switched_to_mig_mode_is_left_out_until_it_leaves_it() -> None:
    """Its units stay in capacity, none can be given out, and an Event says why."""
    async with running_rig(is_hasty=True) as rig:
        uuid = rig.cards.view().cards[1].uuid
        driver_library.set_fields(
            rig.cards.state, ["cards.1.mig_capable=1", "cards.1.mig_enabled=1"]
        )
        await rig.until_offered(THREE, 30)
        await until(lambda: rig.events("MigEnabled"), 10)
        await rig.until_metric(f'card_healthy{{card="{uuid}"', " 0.0")
        code, text = await command(rig, "recover", uuid)
        assert code == 1
        assert "MIG mode" in text
        assert rig.kubelet.capacity(MEM) == 60
        driver_library.set_fields(rig.cards.state, ["cards.1.mig_enabled=0"])

        await rig.until_offered(FOUR_CARDS, 30)


async def test_where_all_cards_are_switched_to_mig_mode_the_annotation_names_none() -> None:
    """It went on to name them all, healthy and with their units."""
    async with running_rig(is_hasty=True) as rig:
        await until(lambda: '"index":3' in rig.annotations().get(CARDS_ANNOTATION, ""), 20)
        for card in range(4):
            driver_library.set_fields(
                rig.cards.state, [f"cards.{card}.mig_capable=1", f"cards.{card}.mig_enabled=1"]
            )

        def named() -> object:
            return json.loads(rig.annotations()[CARDS_ANNOTATION])["cards"]

        await until(lambda: named() == [], 30, named)


async def test_a_card_smaller_than_a_unit_counts_for_nothing() -> None:
    """It counted for 100 % and a count that no pod could use. An Event names the unit that would use it."""
    async with running_rig(is_started=False) as rig:
        driver_library.set_fields(rig.cards.state, ["cards.1.memory_total_mib=979"])
        await rig.start_agent()
        await rig.until_offered(THREE)
        await until(lambda: rig.events("DeviceLeftOut"), 20)
        assert "card 1 (" in rig.events("DeviceLeftOut")[0]["message"]
        assert "--memory-unit 128MiB" in rig.events("DeviceLeftOut")[0]["message"]
        await rig.restart_agent(memory_unit="128MiB")
        await rig.until_offered({MEM: 3 * 126 + 7, CORE: 400, COUNT: 4}, 60)


async def test_a_node_whose_cards_are_all_smaller_than_a_unit_is_not_ready() -> None:
    """It was ready, with no units and without a word."""
    async with running_rig(is_started=False) as rig:
        small = [f"cards.{card}.memory_total_mib=979" for card in range(4)]
        driver_library.set_fields(rig.cards.state, small)
        await rig.start_agent()
        await until(lambda: rig.events("LayoutNotServed"), 20)
        await rig.until_page("LayoutNotServed: every card of this node is too small: card 0 (")
        assert (await rig.page("readyz"))[0] == 503


@pytest.mark.long
async def test_cards_of_a_driver_that_hangs_from_the_start_are_shown_and_not_offered() -> None:
    """The last run's cards keep the node's capacity and its pods' starts; no new pod comes."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        units = rig.grant("p").ids(Resource.MEM)
        await rig.stop_agent()
        await rig.until_offered({MEM: 0, CORE: 0, COUNT: 0})
        rig.cards.hang()
        offered: set[int] = set()
        await rig.start_agent()

        def is_given_up() -> bool:
            offered.add(rig.kubelet.allocatable(MEM))
            return bool(rig.events("NVMLStalled")) and rig.kubelet.registry.links[MEM].has_list

        await until(is_given_up, 30, lambda: rig.log.read_text()[-3000:])
        assert offered == {0}
        assert rig.kubelet.capacity(MEM) == 60
        await rig.kubelet.start_container(rig.uid("p"), "main-0")
        again = await rig.kubelet.registry.links[MEM].allocate(units)
        assert again.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
        rig.cards.unhang()

        await rig.until_offered(FOUR_CARDS, 30)


async def test_the_recover_command_says_that_an_unplugged_card_is_not_there() -> None:
    """It has no index any more; under its UUID it is forgotten, and an Event says so."""
    async with running_rig(is_hasty=True) as rig:
        uuid = rig.cards.view().cards[1].uuid
        rig.cards.unplug(1)
        await rig.until_page(f"card {uuid}", 30)
        code, text = await command(rig, "recover", "3")
        assert code == 3
        assert uuid not in text
        code, text = await command(rig, "recover", uuid)
        assert code == 0
        assert "not there" in text
        await until(lambda: rig.events("Forgotten"), 10)

        assert not any("card -1" in event["message"] for event in rig.events())
        await rig.until_metric(f'card_healthy{{card="{uuid}"', " 0.0")


async def test_a_hanging_driver_takes_all_cards_out_but_never_blocks_the_kubelet() -> None:
    """NVMLStalled after 10 s, once for the node; a start is answered all the while."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        rig.cards.hang()

        served: list[dict[str, int]] = []

        async def is_out() -> bool:
            await rig.kubelet.start_container(rig.uid("p"), "main-0")
            served.append(rig.allocatable())
            return served[-1] == {MEM: 0, CORE: 0, COUNT: 0}

        await until(is_out, 30, rig.allocatable)
        assert (
            served[0] == FOUR_CARDS
        )  # answered while the driver hung, and nobody had given it up yet
        await until(lambda: rig.events("NVMLStalled"), 10)
        rig.cards.unhang()

        await rig.until_offered(FOUR_CARDS, 30)
        await until(lambda: rig.events("NVMLStalledOver"), 10)
        (told,) = rig.events("NVMLStalled")
        assert told["message"].startswith("NVML: no answer for 10 s; ")
        assert not rig.events("Recovered")


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", ""])
async def test_a_card_that_hangs_goes_out_alone_within_twenty_seconds(call: str) -> None:
    """The others stay in the list at every moment; its XIDs are read; by hand it comes back at once.

    Before, NVML counted as stalled again and again: all cards out, and all back with the sick one.
    """
    async with running_rig(recovery_seconds=3600) as rig:
        offered: set[int] = set()

        def is_out() -> bool:
            offered.add(rig.kubelet.allocatable(MEM))
            return rig.allocatable() == THREE

        rig.cards.slow(1, 3600, call)
        await until(is_out, 20, lambda: rig.log.read_text()[-3000:])
        await until(lambda: rig.events("ProbeHangs"), 10)
        if call:  # where every call hangs, a new opening cannot ask for them
            rig.cards.xid(1, 63)
            await until(lambda: is_out() and rig.events("XID63"), 20)
        assert offered == {60, 45}
        assert not rig.events("NVMLStalled")
        rig.cards.slow(1, 0)

        async def is_back() -> bool:  # what its last call says late comes first
            await command(rig, "recover", "1")
            return rig.allocatable() == FOUR_CARDS

        await until(is_back, 20)


async def test_an_agent_that_starts_beside_a_card_that_hangs_offers_the_others() -> None:
    """It offered nothing as long as the card hung. When the card answers, it has to stay well for a while."""
    async with running_rig(is_hasty=True, is_started=False, recovery_seconds=1) as rig:
        rig.cards.slow(2, 3600, "nvmlDeviceGetMemoryInfo")
        await rig.start_agent()
        await rig.until_offered(THREE, 30)
        rig.cards.slow(2, 0)
        await rig.until_offered(FOUR_CARDS, 30)
        await rig.restart_agent(recovery_seconds=3600)
        rig.cards.slow(2, 3600)
        await rig.until_offered(THREE, 30)
        await rig.restart_agent(recovery_seconds=3600)
        await rig.until_offered(THREE, 30)
        assert rig.kubelet.capacity(MEM) == 60
        assert not rig.events("NVMLStalled")
        told = r'"index":2,[^}]*"healthy":false,"fault":"ProbeHangs'
        await until(lambda: re.search(told, rig.annotations().get(CARDS_ANNOTATION, "")), 20)


async def test_an_unplugged_card_is_out_and_its_neighbours_keep_their_places() -> None:
    """NVML renumbers; ids and grants go by UUID."""
    async with running_rig(is_hasty=True, recovery_seconds=1) as rig:
        await rig.admit("a", slice_of(15, 100))
        await rig.admit("b", slice_of(2, 30))
        before = rig.grant("b")
        rig.cards.unplug(0)
        await rig.until_offered(THREE, 30)
        await rig.until_metric('card_healthy{card="0",uuid="' + before.devices[0], " 1.0", 30)
        assert (await rig.admit("c", slice_of(2, 30))).is_admitted
        assert rig.card_of("c") == before.devices[0]
        start = await rig.kubelet.start_container(rig.uid("c"), "main-0")
        assert start.env["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        rig.cards.plug(0)

        await rig.until_offered(FOUR_CARDS, 30)


async def test_what_pods_hold_is_told_of_cards_that_have_other_numbers_now() -> None:
    """The node names them by UUID; a pod's annotations, which have numbers, are written again."""
    async with running_rig(is_hasty=True, recovery_seconds=1) as rig:
        for name in ("a", "b"):
            assert (await rig.admit(name, slice_of(12, 30))).is_admitted
        uuid = rig.card_of("b")
        assert uuid != rig.card_of("a")

        def told() -> tuple[str, ...]:
            """By the pod's annotation and by the node's."""
            of_pod = rig.annotations("/api/v1/namespaces/default/pods/b")
            held = json.loads(rig.annotations().get("gpu-device-plugin/holdings", "{}"))
            slices = held.get("pods", {}).get(rig.uid("b"), {}).get("slices", {})
            named = [held["cards"][int(place)] for place in slices]
            return of_pod.get("scheduler.framework.gpushare.allocation", ""), *named[:1]

        await until(lambda: told() == ('{"0":{"1":12}}', uuid), 20, told)
        rig.cards.unplug(0)
        await until(lambda: told() == ('{"0":{"0":12}}', uuid), 30, told)
        rig.cards.plug(0)
        await until(lambda: told() == ('{"0":{"1":12}}', uuid), 30, told)


async def test_a_new_driver_ends_the_agent_for_re_injection() -> None:
    """The container must be made again with the libraries of the driver that is there now."""
    async with running_rig() as rig:
        rig.cards.upgrade_driver("550.54.15")

        assert await rig.exit_code() == 75
        assert "550.54.15" in rig.log.read_text()


async def test_without_a_driver_the_agent_runs_on_and_says_what_is_missing() -> None:
    """/readyz, the log and an Event on the Node name the reason. Log lines begin with what happened."""
    async with running_rig(is_started=False) as rig:
        await rig.start_agent(nvml_library=rig.root / "nowhere" / "libnvidia-ml.so.1")
        await rig.until_page("libnvidia-ml.so.1")
        await until(lambda: rig.events("DriverMissing"), 10)
        lines = [json.loads(line) for line in rig.log.read_text().splitlines()]
        assert all(list(line)[:3] == ["timestamp", "level", "event"] for line in lines)
        assert {"version", "mode", "isolation", "memory_enforcer"} < lines[0].keys()
        (told,) = [line["text"] for line in lines if line.get("reason") == "DriverMissing"]
        assert told.startswith("libnvidia-ml.so.1 is not ")

        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}
        assert rig.process is not None
        assert rig.process.returncode is None


async def test_cards_of_different_size_are_counted_by_their_own() -> None:
    """One T4 (14 units) and one V100 (15 units)."""
    async with running_rig("mixed") as rig:
        await rig.until_offered({MEM: 29, CORE: 200, COUNT: 2})


async def test_a_missing_isolation_library_makes_the_cards_unhealthy_with_an_event() -> None:
    """A node that could not enforce a slice must not attract pods; it heals by itself."""
    async with running_rig(is_started=False, has_library=False) as rig:
        await rig.start_agent()
        await until(lambda: rig.kubelet.capacity(MEM) == 60, 20)
        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}
        await until(lambda: rig.events("IsolationLibraryMissing"), 10)
        rig.install_library()

        await rig.until_offered(FOUR_CARDS)


async def test_a_card_that_shows_less_than_was_granted_keeps_its_slices_as_they_were() -> None:
    """ECC or another driver takes memory: what was promised stays, and nothing crashes."""
    async with running_rig() as rig:
        await rig.admit("full", slice_of(15, 30))
        limits = rig.run / "slices" / rig.grant("full").slice_id / "config" / "limits"
        before = limits.read_text()
        await rig.stop_agent()
        driver_library.set_fields(rig.cards.state, ["cards.0.memory_total_mib=15000"])
        await rig.start_agent()
        await rig.until_offered({MEM: 59, CORE: 400, COUNT: 4}, 20)

        assert limits.read_text() == before


async def test_a_slice_keeps_its_limits_while_its_card_is_away() -> None:
    """Nothing in a slice's config changes while its container runs."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        limits = rig.run / "slices" / rig.grant("p").slice_id / "config" / "limits"
        before = limits.read_text()
        await rig.stop_agent()
        rig.cards.unplug(0)
        await rig.serve()

        assert limits.read_text() == before


async def test_a_damaged_cards_file_gives_no_card_another_number() -> None:
    """Numbers stand in the units that running pods hold: grants and the kubelet tell them."""
    async with running_rig(is_started=False) as rig:
        rig.cards.unplug(0)
        await rig.serve()
        await rig.admit("old", slice_of(8, 30))
        card = rig.card_of("old")
        await rig.stop_agent()
        rig.cards.plug(0)
        path = rig.state / "cards"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
        await rig.serve()
        await rig.admit("new", slice_of(8, 30))

        assert rig.card_of("new") != card
        assert rig.grant("new").devices != rig.grant("old").devices
