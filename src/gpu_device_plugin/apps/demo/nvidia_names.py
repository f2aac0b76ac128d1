"""A chapter of its own: a node under NVIDIA's names, set otherwise by its label and cut anew."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gpu_device_plugin.apps.demo.cast import CONTAINER, NAMESPACE
from gpu_device_plugin.apps.demo.node import DemoNode, Surroundings
from gpu_device_plugin.apps.demo.promises import Promises, settled
from gpu_device_plugin.apps.demo.telling import NamedOffer, Teller
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.simulation.kubelet_pods import StandInContainer, StandInPod
from gpu_device_plugin.simulation.node import SimulatedNode

NODE = "gpu-c"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
GPU = "nvidia.com/gpu"
_PROFILE = "a100-mig"
_CARDS = 8
_LAST = _CARDS - 1
_REPLICAS = 4
_SECONDS = 60.0
"""Long enough for a slow machine; the time it took is shown."""
_FILES = {
    "mixed": "version: v1\nflags: {migStrategy: mixed}\n",
    "single": "version: v1\nflags: {migStrategy: single}\n",
    "four-replicas": "version: v1\nflags: {migStrategy: mixed}\nsharing:\n  timeSlicing:\n"
    f"    resources: [{{name: {GPU}, replicas: {_REPLICAS}}}]\n",
}
_SEVENTH, _HALF = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


async def serve_nvidia_names(around: Surroundings, teller: Teller, promises: Promises) -> None:
    """Show what one node offers under three configurations and two cuts, and pods on a shared card."""
    teller.chapter(
        "NVIDIA's names, by the same agent",
        f"{NODE} has eight A100, each cut into seven instances, in mode default: no fractions. Its "
        f"label {CONFIG_LABEL} chooses one of NVIDIA's configuration files: mixed and single say how "
        f"instances are named (migStrategy), four-replicas divides whole cards in time. Nothing is restarted.",
    )
    async with AsyncExitStack() as stage:
        scene = _scene(around, teller)
        stage.push_async_callback(scene.node.stop)
        await scene.node.start()
        shown = await _changes(scene)
        teller.named_offers(shown)
        promises.check(
            f"what {NODE} offers after each change",
            [each.expected for each in shown],
            [each.seen for each in shown],
        )
        seen = await _share(scene.node)
        wanted = [scene.cards.view().cards[_LAST].uuid] * _REPLICAS
        promises.check(f"{_REPLICAS} pods that ask {GPU}: 1 share card {_LAST}", wanted, seen)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The node, its cards, and who tells of it."""

    node: DemoNode
    cards: SimulatedNode
    teller: Teller

    async def labelled(self, value: str, expected: Mapping[str, int]) -> NamedOffer:
        """Choose another file."""
        self.node.relabel(CONFIG_LABEL, value)
        return await self.offered(f"label {value}", expected)

    async def cut(
        self, what: str, card: int, profiles: Sequence[str] | None, expected: Mapping[str, int]
    ) -> NamedOffer:
        """Cut a card anew, which nobody tells the agent."""
        self.cards.cut(card, profiles)
        return await self.offered(what, expected)

    async def offered(self, what: str, expected: Mapping[str, int]) -> NamedOffer:
        """What the kubelet counts, as soon as it is what is expected."""

        async def is_offered() -> bool:
            return self.node.named() == expected

        with self.teller.waiting(what):
            await settled(is_offered, wanted=True, seconds=_SECONDS)
        return NamedOffer(what, expected, self.node.named())


def _scene(around: Surroundings, teller: Teller) -> _Scene:
    files, cards = around.root / f"{NODE}-files", around.root / f"{NODE}-cards"
    for directory in (files, cards):
        directory.mkdir()
    for name, text in _FILES.items():
        (files / name).write_text(text)
    simulated = SimulatedNode.create(_PROFILE, cards, seed=NODE)
    settings = {"--config-file-srcdir": str(files)}
    node = DemoNode(NODE, NodeMode.DEFAULT, around, simulated, settings)
    node.labels[CONFIG_LABEL] = "mixed"
    return _Scene(node, simulated, teller)


async def _changes(scene: _Scene) -> list[NamedOffer]:
    cut = {_SEVENTH: 49, _HALF: 2}
    whole = {_SEVENTH: 42, _HALF: 2, GPU: 1}
    return [
        await scene.offered("label mixed", {_SEVENTH: 56}),
        await scene.labelled("single", {GPU: 56}),
        await scene.labelled("mixed", {_SEVENTH: 56}),
        await scene.cut("card 0 cut in two", 0, ["3g.20gb", "3g.20gb"], cut),
        await scene.cut(f"card {_LAST} out of MIG mode", _LAST, None, whole),
        await scene.labelled("four-replicas", {**whole, GPU: _REPLICAS}),
    ]


async def _share(node: DemoNode) -> list[str]:
    """The card that each of as many pods sees as there are replicas of one."""
    cards = []
    for number in range(_REPLICAS):
        container = StandInContainer(CONTAINER, {GPU: 1})
        pod = StandInPod(NAMESPACE, f"sliced-{number}", f"uid-sliced-{number}", (container,))
        admission = await node.kubelet.admit(pod)
        if admission.is_admitted:
            started = await node.kubelet.start_container(pod.uid, CONTAINER)
            cards.append(started.env["NVIDIA_VISIBLE_DEVICES"])
    return cards
