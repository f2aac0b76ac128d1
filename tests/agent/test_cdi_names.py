"""By which CDI names containers get their cards, as the node's specifications have them now."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tools.harness.rig import NODE, Rig, running_rig, slice_of, until

from gpu_device_plugin.agent.card_watch import configuration_follower
from gpu_device_plugin.agent.card_watch.configuration_follower import (
    ConfigurationFollower,
    InForce,
    SeenCards,
)
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.kubernetes.objects.events import EventNote
from gpu_device_plugin.settings.agent_settings import load_settings
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics

OURS, NVIDIAS = "gpu-device-plugin/card", "nvidia.com/gpu"


async def write(rig: Rig, kind: str, *names: str, driver: str | None = None) -> None:
    """A specification as `nvidia-ctk cdi generate` writes it, of all that the agent looks at."""
    assert rig.cards is not None
    view = rig.cards.view()
    named = names or tuple(card.uuid for card in view.cards)
    library = f"/usr/lib/libnvidia-ml.so.{driver or view.driver_version}"
    spec = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": {}} for name in named],
        "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
    }
    directory = rig.root / "cdi"
    directory.mkdir(exist_ok=True)
    (directory / f"{kind.replace('/', '-')}-others.json").write_text(json.dumps(spec))


async def set_runtime(rig: Rig, version: str) -> None:
    """The node's container runtime, as its kubelet tells the API server."""
    status = {"nodeInfo": {"containerRuntimeVersion": version}}
    node: dict[str, Any] = {"metadata": {"name": NODE, "uid": "uid-n1"}, "status": status}
    await rig.api.put(f"/api/v1/nodes/{NODE}", node)


async def serve(rig: Rig, strategy: str = "auto", **settings: object) -> str:
    """The agent, begun anew; what its /readyz says."""
    if rig.is_running:
        await rig.stop_agent()
    await rig.serve(device_list_strategy=strategy, cdi_dir=rig.root / "cdi", **settings)
    return (await rig.page("readyz"))[1]


async def names(rig: Rig, pod: str) -> set[str]:
    """The CDI names that the container of a new pod with a slice gets; where there are none, its card is in its environment."""
    await rig.admit(pod, slice_of(2, 30))
    start = await rig.kubelet.start_container(rig.uid(pod), "main-0")
    seen = "void" if start.cdi_names else rig.card_of(pod)
    assert start.env["NVIDIA_VISIBLE_DEVICES"] == seen
    return set(start.cdi_names)


async def test_cards_come_by_cdi_where_runtime_and_specification_allow_it_and_else_as_ever() -> (
    None
):
    """A specification that comes later is followed; pods that run keep what they were given."""
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        assert "cards by envvar: no CDI specification is of kind" in await serve(rig)
        await until(lambda: rig.events("CardsNotInCdi"), 10)
        assert await names(rig, "before") == set()
        await write(rig, OURS)
        await rig.until_page(f"cards by cdi-cri ({OURS})")
        assert await names(rig, "by-cdi") == {f"{OURS}={rig.card_of('by-cdi')}"}
        old = await rig.kubelet.start_container(rig.uid("before"), "main-0")
        assert (set(old.cdi_names), rig.card_of("before")) == (
            set(),
            old.env["NVIDIA_VISIBLE_DEVICES"],
        )

        await set_runtime(rig, "containerd://1.7.28")
        assert "(containerd://1.7.28) has CDI not on by default" in await serve(rig)
        assert await names(rig, "old-runtime") == set()
        assert len(rig.events("CardsNotInCdi")) == 1


async def test_a_new_runtime_counts_though_the_api_server_is_slow_to_tell_of_it() -> None:
    """The mode of the last run is known at once, and so is its runtime, which may be another one by now."""
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://1.7.28")
        await write(rig, OURS)
        assert "(containerd://1.7.28) has CDI not on by default" in await serve(rig)
        await rig.stop_agent()
        await set_runtime(rig, "containerd://2.4.2")
        rig.api.latency = lambda asked: 3.0 if asked.path.startswith("/api/v1/nodes") else 0.0

        assert f"cards by cdi-cri ({OURS})" in await serve(rig)


async def test_a_configuration_that_says_auto_later_counts_by_the_same_rules(
    tmp_path: Path,
) -> None:
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://1.7.28")
        await write(rig, NVIDIAS)
        file = tmp_path / "config.yaml"
        file.write_text("flags: {plugin: {deviceListStrategy: envvar}}")
        await rig.serve(config_file=file, cdi_dir=rig.root / "cdi")
        assert "cards by" not in (await rig.page("readyz"))[1]

        file.write_text("flags: {plugin: {deviceListStrategy: auto}}")
        await rig.until_page("cards by envvar: the container runtime (containerd://1.7.28)")
        assert await names(rig, "p") == set()


async def test_instances_are_looked_for_as_cards_are() -> None:
    async with running_rig("a100-mig", is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        view = rig.cards.view()
        await write(rig, OURS)
        settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed"}
        assert f"the CDI specification of {OURS} does not name MIG-" in await serve(rig, **settings)

        await write(rig, OURS, *(each.uuid for card in view.cards for each in card.instances))
        assert f"cards by cdi-cri ({OURS})" in await serve(rig, **settings)


async def test_instances_that_are_cut_while_the_agent_runs_come_by_cdi_once_they_are_named() -> (
    None
):
    """Until then by the environment, which any runtime of NVIDIA's understands."""
    async with running_rig("a100-mig", is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")

        def instances() -> list[str]:
            return [each.uuid for card in rig.cards.view().cards for each in card.instances]

        await write(rig, OURS, *instances())
        settings: dict[str, Any] = {"mode": "default", "mig_strategy": "mixed"}
        assert f"cards by cdi-cri ({OURS})" in await serve(rig, **settings)

        before = instances()
        rig.cards.cut(0, ["7g.40gb"])
        assert instances() != before
        await rig.until_page(f"cards by envvar: the CDI specification of {OURS} does not name MIG-")
        await write(rig, OURS, *instances())
        await rig.until_page(f"cards by cdi-cri ({OURS})")


async def test_the_runtime_is_remembered_while_the_api_server_is_away() -> None:
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "cri-o://1.36.0")
        await write(rig, NVIDIAS)
        assert f"cards by cdi-cri ({NVIDIAS})" in await serve(rig)
        await rig.api.stop()

        assert f"cards by cdi-cri ({NVIDIAS})" in await serve(rig)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"driver": "1.2.3"}, f"the CDI specification of {OURS} brings driver 1.2.3, and "),
        ({"names": ("0", "1", "2", "3")}, f"the CDI specification of {OURS} does not name GPU-"),
    ],
)
async def test_a_specification_that_does_not_fit_is_named_and_not_used(
    wrong: dict[str, Any], why: str
) -> None:
    """As after a change of the driver, and where it has only indexes; an Event says so, asked for or chosen."""
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        await write(rig, OURS, *wrong.get("names", ()), driver=wrong.get("driver"))
        assert why in await serve(rig)
        assert await names(rig, "p") == set()
        await until(lambda: rig.events("CardsNotInCdi"), 10)
        assert why in rig.events("CardsNotInCdi")[0]["message"]

        assert why not in await serve(rig, "cdi-cri")
        assert await names(rig, "asked") == {f"{OURS}={rig.card_of('asked')}"}


async def test_nothing_is_said_of_a_specification_that_the_agent_does_not_see() -> None:
    """It may lie in another directory of the container runtime's, or the agent was given none."""
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        await serve(rig, "cdi-cri")
        assert await names(rig, "p") == {f"{NVIDIAS}={rig.card_of('p')}"}
        await until(lambda: rig.events("RunDirectoryShared"), 10)
        await rig.stop_agent()
        await write(rig, OURS, driver="1.2.3")
        await rig.serve(device_list_strategy="cdi-cri", cdi_dir="")
        await until(lambda: len(rig.events("RunDirectoryShared")) > 1, 10)  # it has run its checks
        assert not rig.events("CardsNotInCdi")


async def test_slices_are_named_by_index_where_the_operator_chose_that() -> None:
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        await write(rig, NVIDIAS, "0", "1", "2", "3")
        await serve(rig, device_id_strategy="index")
        (name,) = await names(rig, "p")

        assert rig.cards is not None
        uuids = [card.uuid for card in rig.cards.view().cards]
        assert name == f"{NVIDIAS}={uuids.index(rig.card_of('p'))}"


async def test_a_card_that_cannot_be_opened_needs_no_name() -> None:
    """The toolkit writes none for it; the card keeps its index and is unhealthy."""
    async with running_rig(is_started=False) as rig:
        await set_runtime(rig, "containerd://2.4.2")
        for _ in range(2):
            await serve(rig)  # the second knows the index from the first
        rig.cards.lose(1)
        await until(lambda: rig.events("Lost"), 20)
        cards = rig.cards.view().cards
        await write(rig, OURS, *(card.uuid for card in cards if card != cards[1]))
        await rig.until_page(f"cards by cdi-cri ({OURS})")


class Following:
    """The follower alone, of a configuration file and what is seen of a node that has CDI."""

    def __init__(self, directory: Path, strategy: str) -> None:
        self.notes = list[EventNote]()
        self.holders: Sequence[str] | None = ()
        self.file, self.spec = directory / "config.yaml", directory / "cards.json"
        self.configure(strategy)
        places = {
            "config_file": str(self.file),
            "cdi_dir": str(directory),
            "state_dir": str(directory),
        }
        settings = load_settings({"node_name": NODE, **places}, {}, None)
        self.store = store = NodeStore(first_state(settings))
        self.in_force = InForce(nvidia_configuration(settings))
        recorder = EventRecorder(AgentMetrics(""), self.notes.append, store, lambda: 0.0, Schemes())
        self.follower = ConfigurationFollower(
            settings, store, dict, lambda: self.holders, recorder, self.in_force, lambda: None
        )

    def configure(self, strategy: str) -> None:
        self.file.write_text(f"flags: {{plugin: {{deviceListStrategy: {strategy}}}}}")
        os.utime(self.file, (len(strategy), 0))  # not as young as one that is being written

    def name(self, *names: str) -> None:
        """A specification with these names."""
        self.spec.write_text(json.dumps({"kind": OURS, "devices": [{"name": n} for n in names]}))

    def see(self, *uuids: str) -> None:
        """The node has these cards from now on."""
        at = enumerate(uuids)
        cards = [Card(u, CardNumber(n), CardIndex(n), n, "T4", MiB(16000)) for n, u in at]
        self.seen = SeenCards(cards, "615.1", "containerd://2.4.2")

    @property
    def ways(self) -> tuple[str, ...]:
        return self.in_force.current.access.strategies


async def test_cdi_is_left_only_when_two_reads_say_so(tmp_path: Path) -> None:
    """A new cut is newer than the specification, and one read may find it half written."""
    of = Following(tmp_path, "auto")
    of.name("A")
    of.see("A")
    await of.follower.read_cdi()
    of.follower.name_cards(lambda: of.seen)
    of.see("A", "B")
    await of.follower.read_cdi()
    assert of.ways == ("cdi-cri",)
    of.name("A", "B")
    await of.follower.read_cdi()
    of.spec.write_text("{")
    await of.follower.read_cdi()
    assert of.ways == ("cdi-cri",)
    await of.follower.read_cdi()
    assert of.ways == ("envvar",)
    of.name("A", "B")
    await of.follower.read_cdi()
    assert of.ways == ("cdi-cri",)


async def test_names_leave_alone_the_mig_profile_of_the_last_run(tmp_path: Path) -> None:
    """Whether another one is asked is known with the node's labels, and those may come later."""
    of = Following(tmp_path, "auto")
    of.store.update(mig_profile="all-1g.5gb")
    of.name("A")
    of.see("A")
    await of.follower.read_cdi()
    of.follower.name_cards(lambda: of.seen)
    assert (of.ways, of.store.read().mig_profile) == (("cdi-cri",), "all-1g.5gb")


@pytest.mark.parametrize(
    ("spec", "way", "how"),
    [
        ("A", "cdi-cri", f"cards by cdi-cri ({OURS})"),
        ("B", "envvar", f"cards by envvar: the CDI specification of {OURS} does not name A"),
    ],
)
async def test_another_strategy_of_a_file_comes_into_force_with_its_event(
    tmp_path: Path, spec: str, way: str, how: str
) -> None:
    """Not before it is known what pods hold, as anything else of the file; the log says what became of it."""
    of, changes = Following(tmp_path, "envvar"), list[None]()
    of.follower.changed.subscribe(changes.append)
    of.name(spec)
    of.see("A")
    await of.follower.read_cdi()
    of.follower.name_cards(lambda: of.seen)
    following = asyncio.ensure_future(of.follower.follow())
    of.follower.run()
    await until(lambda: not of.follower.may_choose, 20)
    of.holders = None
    of.configure("auto")
    of.follower.run()
    await until(lambda: of.follower.may_choose, 20)
    await of.follower.read_cdi()
    assert of.ways == ("envvar",)

    of.holders = ()
    with capture_logs() as log:
        of.follower.run()
        await until(lambda: bool(changes), 20)
    assert of.ways == (way,)
    assert [each["how"] for each in log if each["event"] == "cards are named"] == [how]
    assert [note.reason for note in of.notes] == ["ConfigurationChanged"]
    assert len(changes) == 1
    following.cancel()


async def test_a_configuration_is_followed_while_the_disk_of_specifications_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration_follower, "_CDI_SECONDS", 60.0)
    of = Following(tmp_path, "envvar")
    os.mkfifo(of.spec)  # anyone who reads it waits for somebody who writes
    reading = asyncio.ensure_future(of.follower.read_cdi())
    following = asyncio.ensure_future(of.follower.follow())
    for strategy in ("volume-mounts", "cdi-cri"):
        of.configure(strategy)
        of.follower.run()
        await until(lambda wanted=strategy: of.ways == (wanted,), 20)
    assert not reading.done()
    os.close(os.open(of.spec, os.O_WRONLY))
    await reading
    following.cancel()
