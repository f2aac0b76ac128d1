"""A reconcile pass that meets what the one before it met is short, and notices whatever is different."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.held import fraction
from tests.histories.loop import VirtualLoop

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.slice_files import SliceSpec
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.settings.agent_settings import load_settings

POD = PodRef("default", "p", "uid-p")
ASKED = ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: 1})
GRANT = fraction(
    "5111ce", POD, "main", units={Resource.MEM: ("m00",)}, cards=("GPU-a",), is_checked=False
)


class Kubelet(PodResources):
    """One that lists what it is told to."""

    pods: Sequence[ListedPod] = ()

    async def list(self) -> tuple[ListedPod, ...]:
        """A List has the pods again in any case, as other objects."""
        return tuple(replace(each) for each in self.pods)


class Node(NoCluster):
    """The agent's parts between a kubelet and an API server, both of which may change."""

    def __init__(self, root: Path) -> None:
        names = ("state_dir", "run_dir", "library_dir", "kubelet_dir")
        directories = {name: str(root / name) for name in names}
        settings = load_settings({"node_name": "n1", "standalone": True, **directories}, {}, None)
        sockets = [root / "kubelet_dir" / each for each in ("device-plugins", "pod-resources")]
        for path in (root / "state_dir", *sockets):
            path.mkdir(parents=True)
            (path / "kubelet.sock").touch()
        self.kubelet = Kubelet(sockets[1] / "kubelet.sock")
        self.kubelet.pods = [
            ListedPod(PodRef("default", "p"), {"main": {Resource.MEM: frozenset(["m00"])}})
        ]
        self.kept = [
            CheckpointEntry("uid-p", "main", Resource.MEM, frozenset(["m00"]), ContainerEdits())
        ]
        self.pods: dict[tuple[str, str], PodRequest] = {}
        edges = replace(
            real_edges(settings),
            pods=self.kubelet,
            checkpoint=lambda: tuple(self.kept),
            cluster=lambda _signals, _on_drop: self,
        )
        self.wiring = Wiring(settings, edges)
        card = Card("GPU-a", CardNumber(0), CardIndex(0), 0, "V100", MiB(16160))
        self.wiring.node_store.update(mode=NodeMode.CGPU, cards=(card,))
        self.wiring.ledger_store.amend([GRANT])

    def specs(self) -> Mapping[tuple[str, str], PodRequest]:
        """Those of the watch."""
        return self.pods

    async def passes(self, number: int) -> None:
        """That many, half a minute apart."""
        for _ in range(number):
            assert await self.wiring.reconciler.run_pass()
            await asyncio.sleep(31)


def play(root: Path, change: Callable[[Node], object]) -> Node:
    """A node that has been quiet for minutes, and three passes after a change."""
    loop = VirtualLoop(0.0)

    async def story() -> Node:
        node = Node(root)
        await node.passes(5)
        change(node)
        await node.passes(3)
        return node

    try:
        return loop.run_until_complete(story())
    finally:
        loop.discard()


def test_a_pod_that_goes_ends_its_grant_after_half_a_minute(short_dir: Path) -> None:
    """Twice absent, as on a node where something happens all the time."""

    def change(node: Node) -> None:
        node.kubelet.pods, node.kept = (), []

    assert not play(short_dir, change).wiring.ledger_store.ledger.grants


def test_files_that_nobody_names_are_removed(short_dir: Path) -> None:
    """They may come from outside, with no other sign of it."""
    files = SliceSpec("0rphan", "limits", ("GPU-a",))
    node = play(short_dir, lambda node: node.wiring.setup.files.make(files))

    assert "0rphan" not in node.wiring.setup.files.present()


def test_a_spec_that_comes_late_is_checked(short_dir: Path) -> None:
    """The watch has the pod later than the kubelet."""
    spec = PodRequest(POD, (ASKED,))
    node = play(short_dir, lambda node: node.pods.update({POD.key: spec}))
    (grant,) = node.wiring.ledger_store.ledger.grants.values()

    assert grant.is_checked


def test_a_grant_that_is_gone_is_made_again(short_dir: Path) -> None:
    """From what the kubelet holds, which has not changed."""
    ended = [GRANT.slice_id]
    node = play(short_dir, lambda node: node.wiring.ledger_store.amend([], ended=ended))
    (grant,) = node.wiring.ledger_store.ledger.grants.values()

    assert grant.pod.uid == "uid-p"


def test_a_grant_whose_pods_name_is_not_known_ends_too(short_dir: Path) -> None:
    """Its pod is known by uid alone, from the kubelet's checkpoint; nothing else changes when it goes."""
    units: dict[str, tuple[str, ...]] = {Resource.MEM: ("m01",)}
    unnamed = fraction("2222ab", PodRef("", "", "uid-q"), "init", units=units, is_checked=False)
    entry = CheckpointEntry("uid-q", "init", Resource.MEM, frozenset(["m01"]), ContainerEdits())
    loop = VirtualLoop(0.0)

    async def story() -> frozenset[str]:
        node = Node(short_dir)
        node.wiring.ledger_store.amend([unnamed])
        node.kept.append(entry)
        await node.passes(5)
        assert unnamed.slice_id in node.wiring.ledger_store.ledger.grants
        node.kept = node.kept[:1]
        await node.passes(3)
        return frozenset(node.wiring.ledger_store.ledger.grants)

    try:
        assert loop.run_until_complete(story()) == {GRANT.slice_id}
    finally:
        loop.discard()
