"""Whole cards, replicas and MIG instances: the shipped agent on simulated cards, in mode default.

The kubelet's choice stands, and what it chose is recorded afterwards.
"""

import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tools.harness.rig import CORE, MEM, NODE, Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

GPU, SHARED, SEVENTH = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
TIME_SLICING = """
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources: [{name: nvidia.com/gpu, replicas: 10}]
"""


async def offered(rig: Rig, **expected: int) -> None:
    """Wait until the kubelet shows exactly so many, and no fractions."""
    names = {"gpu": GPU, "shared": SHARED, "seventh": SEVENTH, "fast": "nvidia.com/fast"}
    wanted = {names[key]: amount for key, amount in expected.items()}

    def found() -> dict[str, int]:
        return {
            name: n for name in rig.kubelet.registry.links if (n := rig.kubelet.allocatable(name))
        }

    await until(lambda: found() == wanted, 20, lambda: f"{found()} {rig.log.read_text()[-3000:]}")


async def visible(rig: Rig, name: str) -> list[str]:
    """The devices that the pod's container sees."""
    options = await rig.kubelet.start_container(rig.uid(name), "main-0")
    return options.env[VISIBLE].split(",")


async def annotated(rig: Rig, name: str, seconds: float = 20) -> dict[str, Any]:
    """What the pod's annotation says of its devices, once it is there."""
    path = f"/api/v1/namespaces/default/pods/{name}"

    def text() -> str:
        return rig.annotations(path).get("gpu-device-plugin/devices", "")

    await until(lambda: bool(text()), seconds, lambda: rig.log.read_text()[-3000:])
    found: dict[str, Any] = json.loads(text())
    return found


async def test_whole_cards_are_given_as_the_kubelet_chooses_and_recorded() -> None:
    """With the environment that NVIDIA's runtime reads; a pod's annotation names its card."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        assert (await rig.admit("one", {GPU: 1})).is_admitted
        uuids = await visible(rig, "one")
        assert uuids[0] in {card.uuid for card in rig.cards.view().cards}
        assert (await rig.admit("three", {GPU: 3})).is_admitted
        assert len({*uuids, *await visible(rig, "three")}) == 4
        assert await annotated(rig, "one") == {"0": uuids}
        assert not (await rig.admit("more", {GPU: 1})).is_admitted
        await rig.until_page("ready: mode default, nvidia.com/gpu")
        assert not rig.events("SliceAdopted")


async def test_units_that_are_offered_no_longer_are_not_proposed() -> None:
    """The kubelet may still know them, and would give the container what the agent has to refuse."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        assert (await rig.admit("first", {GPU: 1})).is_admitted
        held = (await annotated(rig, "first"))["0"][0]
        link = rig.kubelet.registry.links[GPU]
        assert await link.ask_preferred((held, "GPU-of-yesterday"), (), 1) == {held}


async def test_containers_of_whole_cards_start_again_while_the_agent_is_away() -> None:
    """Nothing is checked before their start, so they need no agent that answers."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        assert (await rig.admit("one", {GPU: 1})).is_admitted
        uuids = await visible(rig, "one")
        await rig.stop_agent()
        assert await visible(rig, "one") == uuids


async def test_a_holder_is_recorded_soon_although_the_kubelet_first_gave_no_snapshot() -> None:
    """A pass that failed is made again after seconds, not after the usual 30."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        await rig.kubelet.pod_resources.stop()
        assert (await rig.admit("one", {GPU: 1})).is_admitted
        await until(lambda: "reconcile pass failed" in rig.log.read_text(), 20)
        await rig.kubelet.pod_resources.start(rig.kubelet.registry.book)
        await annotated(rig, "one", 4)


async def test_two_cards_of_a_dgx_1_are_those_with_two_nvlinks() -> None:
    """R-703: cards 0 and 3, by the links that came with the inventory; then 1 and 2."""
    async with running_rig("dgx-1", mode="default") as rig:
        await offered(rig, gpu=8)
        uuids = [card.uuid for card in rig.cards.view().cards]
        for name, pair in (("first", (0, 3)), ("second", (1, 2))):
            assert (await rig.admit(name, {GPU: 2})).is_admitted
            assert set(await visible(rig, name)) == {uuids[card] for card in pair}


async def test_time_slicing_of_nvidias_file_offers_replicas(tmp_path: Path) -> None:
    """R-303, R-304, R-701, R-702: 40 of four cards; two at once are refused in NVIDIA's words."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    async with running_rig(mode="default", config_file=file) as rig:
        await offered(rig, gpu=40)
        for number in range(4):
            assert (await rig.admit(f"p{number}", {GPU: 1})).is_admitted
        seen = [(await visible(rig, f"p{number}"))[0] for number in range(4)]
        assert sorted(seen) == sorted(card.uuid for card in rig.cards.view().cards)
        refused = await rig.admit("two", {GPU: 2})
        assert not refused.is_admitted
        assert (
            'invalid allocation request for "nvidia.com/gpu": invalid request: maximum request '
            "size for shared resources is 1; found 2"
        ) in refused.message


async def test_sharing_without_effect_is_told_and_mode_default_makes_it_count(
    tmp_path: Path,
) -> None:
    """A node that divides its cards has no replicas: an Event and /readyz name the file and the mode."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    async with running_rig(mode="core_mem", config_file=file) as rig:
        text = f"sharing of {file} has no effect in mode core_mem: {GPU}"
        await rig.until_page(f"; {text}")
        await until(lambda: rig.events("SharingUnused"), 20)
        assert text in rig.events("SharingUnused")[0]["message"]
        await rig.set_labels(schedule="default")
        await offered(rig, gpu=40)
        await until(lambda: rig.events("SharingUnusedOver"), 20)
        # A label is somebody's decision: one file can be for nodes of several modes.
        await rig.set_labels(schedule="core_mem")
        await until(lambda: rig.kubelet.allocatable("aliyun.com/gpu-mem") > 0, 20)
        assert "no effect" not in (await rig.page("readyz"))[1]


async def test_instances_are_offered_by_the_strategy_and_a_new_cut_is_followed() -> None:
    """R-201, R-207: 56 both ways; an instance is named by its own UUID."""
    async with running_rig("a100-mig", is_hasty=True, mode="default", mig_strategy="single") as rig:
        await offered(rig, gpu=56)
        assert (await rig.admit("one", {GPU: 1})).is_admitted
        assert (await visible(rig, "one"))[0].startswith("MIG-")
    async with running_rig("a100-mig", is_hasty=True, mode="default", mig_strategy="mixed") as rig:
        await offered(rig, seventh=56)
        assert (await rig.admit("one", {SEVENTH: 2})).is_admitted
        instances = {i.uuid for card in rig.cards.view().cards for i in card.instances}
        assert set(await visible(rig, "one")) < instances
        rig.cards.cut(7, None)
        await offered(rig, seventh=49, gpu=1)


async def test_instances_have_the_ids_of_their_driver() -> None:
    """R-211: before 470 an instance is named by its card and its place; cut again it has the same name."""
    async with running_rig("a100-mig", is_started=False) as rig:
        SimulatedNode.create("a100-mig", rig.root / "gpu", driver_version="460.32.03", cards=1)
        await rig.start_agent(mode="default", mig_strategy="mixed")
        await offered(rig, seventh=7)
        assert (await rig.admit("all", {SEVENTH: 7})).is_admitted
        (card,) = rig.cards.view().cards
        assert sorted(await visible(rig, "all")) == [
            *(f"MIG-{card.uuid}/{7 + place}/0" for place in range(3, 7)),
            *(f"MIG-{card.uuid}/{7 + place}/0" for place in range(3)),
        ]
        rig.cards.cut(0, ["7g.40gb"])
        assert [each.uuid for each in rig.cards.view().cards[0].instances] == [
            f"MIG-{card.uuid}/7/0"
        ]


async def test_a_layout_that_cannot_be_served_is_not_ready_and_says_why() -> None:
    """R-707: with NVIDIA's words, in /readyz and an Event; it ends with the next cut."""
    async with running_rig(
        "a100-mig", is_hasty=True, is_started=False, mode="default", mig_strategy="single"
    ) as rig:
        rig.cards.cut(0, None)
        await rig.start_agent(mode="default", mig_strategy="single")
        await rig.until_page("all devices on the node must be configured with the same migEnabled")
        assert rig.is_running
        await until(lambda: bool(rig.events("LayoutNotServed")), 20)
        rig.cards.cut(0, ["1g.5gb"] * 7)
        await offered(rig, gpu=56)
        await rig.until_ready()


async def test_an_agent_that_starts_while_a_card_of_the_configuration_is_lost_serves_the_others(
    tmp_path: Path,
) -> None:
    """It was not ready, and every pod of the node waited for one card."""
    file = tmp_path / "config.yaml"
    entry = "{name: nvidia.com/gpu, replicas: 10, rename: nvidia.com/gpu.shared, devices: [0, 3]}"
    file.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{entry}]}}}}\n")
    async with running_rig(
        is_hasty=True, is_started=False, mode="default", config_file=file
    ) as rig:
        rig.cards.lose(3)
        await rig.start_agent(mode="default", config_file=file)
        await offered(rig, gpu=2, shared=10)
        await rig.until_ready()
        await until(lambda: "at index: 3" in str(rig.events("DeviceLeftOut")), 20)
        rig.cards.restore(3)
        await offered(rig, gpu=2, shared=20)


@asynccontextmanager
async def sharing(tmp_path: Path) -> AsyncIterator[tuple[Rig, Path]]:
    """Four cards of ten replicas each, and the file that says so."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    async with running_rig(mode="default", config_file=file) as rig:
        await offered(rig, gpu=40)
        yield rig, file


async def test_an_xid_takes_out_every_replica_of_its_card_and_heals(tmp_path: Path) -> None:
    """R-709, and those of no other card; an XID of the settings that is malformed is skipped."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    settings: dict[str, Any] = {"recovery_seconds": 1, "disable_healthchecks": "4 8,79"}
    async with running_rig(is_hasty=True, mode="default", config_file=file, **settings) as rig:
        await offered(rig, gpu=40)
        assert "malformed XIDs" in rig.log.read_text()
        rig.cards.xid(2, 48)
        await offered(rig, gpu=30)
        rig.cards.restore(2)
        await offered(rig, gpu=40)


async def test_an_xid_in_an_instance_takes_out_that_instance_alone() -> None:
    """R-709. One that names no instance, and a reset that NVML asks for, concern all of the card."""
    settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed", "recovery_seconds": 1}
    async with running_rig("a100-mig", is_hasty=True, **settings) as rig:
        await offered(rig, seventh=56)
        uuid = rig.cards.view().cards[2].instances[3].uuid
        rig.cards.xid(2, 8, instance=3)
        await offered(rig, seventh=55)
        await until(lambda: uuid in str(rig.events("XID8")), 10)

        def sick() -> list[str]:
            cards = json.loads(rig.annotations().get(CARDS_ANNOTATION, '{"cards": []}'))["cards"]
            return [i["uuid"] for card in cards for i in card["instances"] if not i["healthy"]]

        await until(lambda: sick() == [uuid], 20)
        rig.cards.xid(2, 48)
        await offered(rig, seventh=49)
        rig.cards.restore(2)
        await offered(rig, seventh=56)


async def test_a_changed_file_changes_every_card_but_those_that_are_held(tmp_path: Path) -> None:
    """R-708, R-730: within seconds, also to a name never offered before; a bad file changes nothing."""
    async with sharing(tmp_path) as (rig, file):
        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 1"))
        await until(lambda: bool(rig.events("ConfigurationRefused")), 20)
        assert "number of replicas must be >= 2" in rig.events("ConfigurationRefused")[0]["message"]
        await offered(rig, gpu=40)
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        await annotated(rig, "holder")
        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 2, rename: fast"))
        await offered(rig, gpu=1, fast=6)
        await until(lambda: bool(rig.events("ConfigurationWaits")), 20)
        assert "default/holder" in rig.events("ConfigurationWaits")[0]["message"]
        await rig.stop_agent()
        await rig.start_agent(mode="default", config_file=file)
        await offered(rig, gpu=1, fast=6)
        assert not (await rig.admit("second", {GPU: 1})).is_admitted
        await rig.delete(rig.uid("holder"))
        await offered(rig, fast=8)


async def test_a_card_that_waits_offers_no_unit_of_a_pod_that_ended(tmp_path: Path) -> None:
    """The kubelet would give that unit to a pod, which the agent had to refuse."""
    async with sharing(tmp_path) as (rig, file):
        for number in range(9):  # card 0 has one more than the other three
            assert (await rig.admit(f"pod-{number}", {GPU: 1})).is_admitted
            await annotated(rig, f"pod-{number}")
        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 2"))
        await offered(rig, gpu=9)
        await rig.delete(rig.uid("pod-0"))
        await offered(rig, gpu=8)


async def test_a_holder_that_a_pass_finds_changes_the_list_of_its_card(tmp_path: Path) -> None:
    """Nobody had recorded it: the kubelet would give the card to pods that the agent had to refuse."""
    async with sharing(tmp_path) as (rig, file):
        await rig.kubelet.pod_resources.stop()
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        await rig.stop_agent(signal.SIGKILL)
        file.write_text("version: v1")
        await rig.start_agent(mode="default", config_file=file)
        await offered(rig, gpu=4)
        await rig.kubelet.pod_resources.start(rig.kubelet.registry.book)
        await annotated(rig, "holder")
        listed = rig.kubelet.registry.book.healthy
        await until(lambda: sum("::" in unit for unit in listed[GPU]) == 1, 15, lambda: listed)


async def test_another_mig_strategy_needs_no_restart(tmp_path: Path) -> None:
    """The cards in MIG mode are taken or left; an instance that is held keeps its name meanwhile (R-706)."""
    file = tmp_path / "config.yaml"
    file.write_text("flags: {migStrategy: none}")
    async with running_rig("a100-mig", is_started=False) as rig:
        await rig.start_agent(mode="default", config_file=file)
        await until(lambda: bool(rig.events("MigCardSkipped")), 20)
        assert "set --mig-strategy mixed or single" in rig.events("MigCardSkipped")[0]["message"]
        await rig.until_page("or end MIG mode with `nvidia-smi -i 0 -mig 0`")
        file.write_text("flags: {migStrategy: single}")
        await offered(rig, gpu=56)
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        await annotated(rig, "holder")
        file.write_text("flags: {migStrategy: mixed}")
        await offered(rig, gpu=1, seventh=49)
        await rig.delete(rig.uid("holder"))
        await offered(rig, seventh=56)
        file.write_text("flags: {migStrategy: none}")
        await offered(rig)


async def test_a_card_put_into_mig_mode_changes_sides_when_nobody_holds_anything_of_it() -> None:
    """Fractions and instances of one card are never offered together."""
    async with running_rig("a100-mig", is_hasty=True, is_started=False) as rig:
        for index in range(8):
            rig.cards.cut(index, None)
        await rig.serve(mode="core_mem", mig_strategy="mixed")
        assert (await rig.admit("holder", {MEM: 1, CORE: 5})).is_admitted
        card = rig.card_of("holder")
        index = [each.uuid for each in rig.cards.view().cards].index(card)
        rig.cards.cut(index, ["1g.5gb"] * 7)
        await until(lambda: rig.kubelet.allocatable(CORE) == 700, 20)
        assert not rig.kubelet.allocatable(SEVENTH)
        await rig.delete(rig.uid("holder"))
        await until(lambda: rig.kubelet.allocatable(SEVENTH) == 7, 20)


FAST = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 10}]}}"
SLOW = FAST.replace("10", "2")


def configurations(directory: Path) -> dict[str, Any]:
    """Settings of an agent with four configurations to choose from."""
    for name, text in (("default", "version: v1"), ("fast", FAST), ("slow", SLOW), ("bad", "x: 1")):
        (directory / name).write_text(text)
    return {"mode": "default", "config_file_srcdir": directory}


async def test_a_label_of_the_node_chooses_the_configuration(tmp_path: Path) -> None:
    """R-730: nothing is offered before it was read; without it the default counts."""
    async with running_rig(is_started=False) as rig:
        await rig.api.stop()
        await rig.start_agent(**configurations(tmp_path))
        await rig.until_page("mode: waiting for the node's labels")
        assert not rig.kubelet.registry.links
        await rig.set_labels(config="fast")
        await rig.api.start()
        await offered(rig, gpu=40)
        await rig.set_labels(config="slow")
        await offered(rig, gpu=8)
        await rig.set_labels()
        await offered(rig, gpu=4)
        assert not rig.events("ConfigurationMissingOver")


async def test_a_bad_or_unknown_choice_leaves_the_one_before_in_force(tmp_path: Path) -> None:
    """After a restart the agent is up and not ready, until the choice is good."""
    settings = configurations(tmp_path)
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(config="fast")
        await rig.start_agent(**settings)
        await offered(rig, gpu=40)
        await rig.set_labels(config="nowhere")
        await until(lambda: bool(rig.events("ConfigurationRefused")), 20)
        refused = rig.events("ConfigurationRefused")[0]["message"]
        assert "specified config nowhere does not exist" in refused
        await rig.set_labels(config="bad")
        await until(lambda: len(rig.events("ConfigurationRefused")) > 1, 20)
        await offered(rig, gpu=40)
        await rig.stop_agent()
        await rig.start_agent(**settings)
        await offered(rig, gpu=40)
        await rig.until_page("x: unknown key")
        assert "; the one of 20" in (await rig.page("readyz"))[1]
        assert not rig.events("ConfigurationMissing")
        await rig.set_labels(config="slow")
        await offered(rig, gpu=8)
        await rig.until_ready()
        assert "unknown key" not in (await rig.page("readyz"))[1]


async def test_without_a_good_choice_ever_the_agent_is_up_and_not_ready(tmp_path: Path) -> None:
    """Nothing was kept that could count."""
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(config="bad")
        await rig.start_agent(**configurations(tmp_path))
        await rig.until_page("x: unknown key")
        assert rig.is_running
        await until(lambda: bool(rig.events("ConfigurationMissing")), 20)
        assert "x: unknown key" in rig.events("ConfigurationMissing")[0]["message"]
        await rig.set_labels(config="slow")
        await offered(rig, gpu=8)
        await rig.until_ready()


async def test_a_bad_edit_outlives_no_start_and_no_good_one(tmp_path: Path) -> None:
    """The last good file is kept; who looks is told that it is older, and of when."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    async with running_rig(mode="default", config_file=file) as rig:
        await offered(rig, gpu=40)
        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 1"))
        await until(lambda: bool(rig.events("ConfigurationRefused")), 20)
        for _ in range(2):
            before = sum(event.get("count", 1) for event in rig.events("ConfigurationRefused"))
            await rig.restart_agent(mode="default", config_file=file)
            await offered(rig, gpu=40)
            await rig.until_page("must be >= 2; the one of 20")
            await until(
                lambda before=before: (
                    sum(e.get("count", 1) for e in rig.events("ConfigurationRefused")) > before
                ),
                20,
            )

        def published() -> str:
            told = json.loads(rig.annotations().get(CARDS_ANNOTATION, "{}"))
            return str(told.get("older_configuration"))

        await until(lambda: "must be >= 2; the one of 20" in published(), 20, published)
        assert (await rig.admit("one", {GPU: 1})).is_admitted

        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 3"))
        await until(lambda: published() == "None", 20, published)
        assert "must be" not in (await rig.page("readyz"))[1]


async def test_a_bad_file_at_a_start_counts_for_nothing_and_a_good_one_is_kept(
    tmp_path: Path,
) -> None:
    """Each good one is; without any the start fails with the reason."""
    file = tmp_path / "config.yaml"
    file.write_text(TIME_SLICING)
    async with running_rig(mode="default", config_file=file) as rig:
        await offered(rig, gpu=40)
        file.write_text(TIME_SLICING.replace("replicas: 10", "replicas: 3"))
        await offered(rig, gpu=12)
        await rig.stop_agent()
        file.write_text("x: 1\n")
        await rig.serve(mode="default", config_file=file)
        await offered(rig, gpu=12)
        await rig.stop_agent()
        (rig.state / "configuration").unlink()
        await rig.start_agent(mode="default", config_file=file)
        assert await rig.exit_code() == 2


@contextmanager
def answering(path: Path) -> Iterator[None]:
    """A plugin that listens at `path`; its file stays behind."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


async def test_nvidias_plugin_beside_ours_is_noticed_by_its_socket_and_a_stale_file_is_none() -> (
    None
):
    """In mode default the resource names are the same, so that the node's counts tell nothing."""
    async with running_rig(is_started=False, mode="default") as rig:
        with answering(rig.kubelet.plugin_dir / "nvidia-gpu.sock"):
            await rig.start_agent(mode="default")
            await rig.until_page("another device plugin answers on nvidia-gpu.sock")
            await until(lambda: bool(rig.events("OtherPlugin")), 20)
            assert not rig.kubelet.registry.links
        await offered(rig, gpu=4)
        await rig.until_ready()
        with answering(rig.kubelet.plugin_dir / "nvidia-mig-1g.5gb.sock"):
            await offered(rig)
        await offered(rig, gpu=4)


async def test_pods_of_nvidias_own_plugin_do_not_keep_the_mode(tmp_path: Path) -> None:
    """An agent without the state of the first has never offered what they hold, and divides no such card."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        assert (await rig.admit("theirs", {GPU: 1})).is_admitted
        await rig.stop_agent()
        await rig.set_labels(schedule="cgpu")
        rig.state = tmp_path
        await rig.start_agent()
        await until(lambda: rig.kubelet.allocatable(MEM) == 60, 20)
        await until(
            lambda: "theirs" in "".join(f.read_text() for f in tmp_path.glob("grants*")), 20
        )
        await rig.set_labels(schedule="disabled")
        await until(lambda: rig.kubelet.allocatable(MEM) == 0, 20)
        await rig.set_labels(schedule="cgpu")
        await until(lambda: rig.kubelet.allocatable(MEM) == 60, 20)
        for place in range(3):
            assert (await rig.admit(f"whole-{place}", {MEM: 15})).is_admitted
        assert not (await rig.admit("one-too-many", {MEM: 1})).is_admitted
        assert "theirs" not in str([each["message"] for each in rig.events("ModeSwitchRefused")])


async def test_names_that_we_registered_in_an_earlier_run_are_not_another_plugins() -> None:
    """The kubelet counts whole cards for five minutes after a switch to fractions."""
    async with running_rig(mode="default") as rig:
        await offered(rig, gpu=4)
        await rig.stop_agent()
        await rig.set_labels(schedule="core_mem")
        node = rig.api.objects[f"/api/v1/nodes/{NODE}"]
        counted = {**node, "status": {"capacity": {GPU: "4"}, "nodeInfo": {}}}
        await rig.api.put(f"/api/v1/nodes/{NODE}", counted)
        await rig.start_agent(mode="default")
        await until(lambda: rig.kubelet.allocatable(MEM) == 60, 20)
        await rig.stop_agent()
        await rig.start_agent(mode="default")
        await until(lambda: rig.kubelet.allocatable(MEM) == 60, 20)
        assert not rig.events("OtherPlugin")
        other = {**counted, "status": {"capacity": {SEVENTH: "4"}, "nodeInfo": {}}}
        await rig.api.put(f"/api/v1/nodes/{NODE}", other)
        await rig.until_page(f"{SEVENTH}: 4")


PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"


def labels_of(rig: Rig) -> dict[str, str]:
    """NVIDIA's labels on the node, but for the time."""
    found: dict[str, str] = rig.api.objects[f"/api/v1/nodes/{NODE}"]["metadata"].get("labels", {})
    return {
        key: value
        for key, value in found.items()
        if key.startswith("nvidia.com/") and key != "nvidia.com/gfd.timestamp"
    }


async def test_feature_labels_are_written_to_node_and_file_and_removed_when_off(
    tmp_path: Path,
) -> None:
    """R-740: somebody else's stay, with an Event; another run knows which are ours."""
    out, machine = tmp_path / "features.d" / "gfd", tmp_path / "product_name"
    machine.write_text("PowerEdge (R750)\n")
    settings: dict[str, Any] = {"mode": "default", "gfd_output_file": out}
    async with running_rig("a100-mig", is_started=False) as rig:
        node = rig.api.objects[f"/api/v1/nodes/{NODE}"]
        theirs = {"nvidia.com/gpu.family": "theirs", "nvidia.com/other": "x"}
        await rig.api.put(
            f"/api/v1/nodes/{NODE}", {**node, "metadata": {"name": NODE, "labels": theirs}}
        )
        await rig.start_agent(gfd="on", machine_type_file=machine, mig_strategy="mixed", **settings)
        await until(lambda: PRODUCT in labels_of(rig), 20)
        found = labels_of(rig)
        assert found["nvidia.com/gpu.family"] == "theirs"
        assert found["nvidia.com/gpu.machine"] == "PowerEdge-R750"
        assert found["nvidia.com/mig-1g.5gb.count"] == "56"
        await until(lambda: "nvidia.com/gpu.family" in str(rig.events("FeatureLabelsTaken")), 20)
        await until(out.exists, 20)
        lines = out.read_text().splitlines()
        assert f"{PRODUCT}={found[PRODUCT]}" in lines
        assert any(line.startswith("nvidia.com/gfd.timestamp=") for line in lines)
        await rig.stop_agent()
        await rig.start_agent(mig_strategy="single", **settings)
        await until(lambda: labels_of(rig) == theirs, 20, lambda: labels_of(rig))
        await until(lambda: not out.exists(), 20)


async def test_a_file_of_feature_labels_is_kept_where_they_are_on_and_left_alone_where_not(
    tmp_path: Path,
) -> None:
    """With them off it is somebody else's, unless an earlier run wrote labels to this node."""
    directory = tmp_path / "features.d"
    out, other = directory / "gfd", tmp_path / "in-the-way" / "gfd"
    directory.mkdir()
    out.write_text("nvidia.com/gpu.count=8\n")
    async with running_rig(mode="default", gfd_output_file=out) as rig:
        assert out.read_text() == "nvidia.com/gpu.count=8\n"
        await rig.stop_agent()
        await rig.start_agent(mode="default", gfd="on", gfd_output_file=out)
        await until(lambda: "nvidia.com/gpu.count=4\n" in out.read_text(), 20)
        out.unlink()
        await until(out.exists, 20)
        await rig.stop_agent()
        other.parent.write_text("")
        await rig.start_agent(mode="default", gfd="on", gfd_output_file=other)
        await until(lambda: "feature labels cannot be written" in rig.log.read_text(), 20)
        other.parent.unlink()
        await until(other.exists, 20)


async def test_feature_labels_follow_the_configuration_and_never_vanish(tmp_path: Path) -> None:
    """R-742: one patch a change."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1")
    async with running_rig(mode="default", config_file=file, gfd=True) as rig:
        await until(lambda: labels_of(rig).get(REPLICAS) == "1", 20)
        seen = len(rig.api.seen("PATCH", f"/api/v1/nodes/{NODE}"))
        file.write_text(TIME_SLICING)
        await until(lambda: labels_of(rig).get(REPLICAS) == "10", 20)
        assert labels_of(rig)[PRODUCT].endswith("-SHARED")
        patches = rig.api.seen("PATCH", f"/api/v1/nodes/{NODE}")[seen:]
        written = [p.body["metadata"].get("labels", {}) for p in patches]
        assert not [each for each in written if None in each.values()]


async def test_nothing_is_offered_while_the_cards_are_not_cut_into_the_profile() -> None:
    """R-203: /readyz says by which commands they are; the label goes before the setting."""
    settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed", "mig_profile": "MIG7g"}
    async with running_rig("a100-mig", is_hasty=True, is_started=False) as rig:
        rig.cards.cut(3, ["3g.20gb"] * 2)
        await rig.set_labels(mig_profile="MIG1g")
        await rig.start_agent(**settings)
        await rig.until_page("1 of 8 cards are not cut as the MIG profile MIG1g says")
        text = (await rig.page("readyz"))[1]
        assert "gpu-device-plugin mig apply MIG1g" in text
        there_first = "nvidia-smi mig -i 3 -dci; nvidia-smi mig -i 3 -dgi; nvidia-smi mig -i 3 -cgi"
        assert f"{there_first} 1g.5gb,1g.5gb,1g.5gb" in text
        await offered(rig)
        rig.cards.cut(4, ["3g.20gb"] * 2)
        await until(lambda: len(rig.events("LayoutNotServed")) > 1, 20)
        assert {event["message"][0] for event in rig.events("LayoutNotServed")} == {"1", "2"}
        rig.cards.cut(4, ["1g.5gb"] * 7)
        rig.cards.cut(3, ["1g.5gb"] * 7)
        await offered(rig, seventh=56)


@asynccontextmanager
async def rig_in_sevenths(**settings: Any) -> AsyncIterator[Rig]:
    """Eight cards, cut as the profile MIG1g of the node's label says, served with these settings."""
    async with running_rig("a100-mig", is_hasty=True, is_started=False) as rig:
        await rig.set_labels(mig_profile="MIG1g")
        await rig.start_agent(**settings)
        await offered(rig, seventh=56)
        yield rig


async def test_a_misspelt_profile_leaves_the_one_before_in_force() -> None:
    """Also over a restart of the agent; an Event names the profiles that the cards have."""
    settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed"}
    async with rig_in_sevenths(**settings) as rig:
        await rig.set_labels(mig_profile="MIG1")
        await until(lambda: bool(rig.events("MigProfileRefused")), 20)
        assert "it has MIG1g, MIG2g" in rig.events("MigProfileRefused")[0]["message"]
        await rig.stop_agent()
        await rig.start_agent(**settings)
        await until(lambda: rig.log.read_text().count("does not become MIG1:") > 1, 20)
        await offered(rig, seventh=56)
        assert not rig.events("LayoutNotServed")
        await rig.set_labels(mig_profile="MIG7g")
        await rig.until_page("8 of 8 cards are not cut as the MIG profile MIG7g says")


async def test_a_profile_does_not_change_while_pods_hold_anything() -> None:
    """R-204: also over restarts, by label and by setting; an Event names the pods."""
    settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed"}
    async with rig_in_sevenths(**settings) as rig:
        assert (await rig.admit("holder", {SEVENTH: 1})).is_admitted
        await annotated(rig, "holder")
        await rig.stop_agent()
        await rig.set_labels(mig_profile="MIG2g")
        await rig.start_agent(**settings)
        await until(lambda: bool(rig.events("MigProfileRefused")), 20)
        assert "default/holder" in rig.events("MigProfileRefused")[0]["message"]
        await offered(rig, seventh=56)
        await rig.stop_agent()
        await rig.set_labels()
        await rig.start_agent(mig_profile="MIG2g", **settings)
        await offered(rig, seventh=56)
        await until(lambda: rig.log.read_text().count("does not become MIG2g") > 1, 20)
        await offered(rig, seventh=56)
        await rig.delete(rig.uid("holder"))
        await rig.until_page("8 of 8 cards are not cut as the MIG profile MIG2g says")
