"""The story, chapter by chapter: what happens, what is shown, what is promised."""

from collections.abc import Mapping, Sequence

from gpu_device_plugin.apps.demo.cast import (
    CAST,
    CGPU_NODE,
    CORE_MEM_NODE,
    CROWDED_OUT,
    FIRST,
    OFFERS,
    SLICE_OF_FIRST_MIB,
    TWO_CARDS,
    Role,
)
from gpu_device_plugin.apps.demo.node import DemoNode
from gpu_device_plugin.apps.demo.promises import Promises, settled
from gpu_device_plugin.apps.demo.telling import (
    CardMap,
    CardRow,
    Offered,
    Received,
    Share,
    Teller,
    Verdict,
)
from gpu_device_plugin.domain.modes import resources_of
from gpu_device_plugin.domain.units import Resource
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.simulation.kubelet_pods import Admission

START_SECONDS = 25.0
_SOON_SECONDS = 10.0
_MIB = 1024 * 1024


class Story:
    """Tells of the nodes, in order."""

    def __init__(self, nodes: Mapping[str, DemoNode], teller: Teller, promises: Promises) -> None:
        self._nodes = nodes
        self._teller = teller
        self._promises = promises
        self._admissions: dict[str, Admission] = {}

    async def offers(self) -> None:
        """The agents serve, and the kubelets count what they offer."""
        self._teller.chapter(
            "What the nodes offer",
            "Each card of 16160 MiB is 15 memory units of 1 GiB. The node label "
            "ack.node.gpu.schedule says how cards are divided: core_mem divides memory and "
            "compute, cgpu memory alone. What the kubelets count as allocatable:",
        )
        shown = []
        for offer in OFFERS:
            node = self._nodes[offer.node]
            with self._teller.waiting(f"waiting for the agent of {node.name} to register"):
                seen = await settled(node.allocatable, offer.allocatable, START_SECONDS)
                ready = await settled(lambda n=node: _is_ready(n), "ready", _SOON_SECONDS)  # type: ignore[misc]
            shown.append((offer, await node.allocatable(), seen, ready))
        self._teller.offers([_offered(self._nodes[o.node], counted) for o, counted, _, _ in shown])
        for offer, _, seen, ready in shown:
            what = f"{offer.node} offers memory units, percent, cards"
            self._promises.check(what, offer.allocatable, seen)
            self._promises.check(f"the agent of {offer.node} says", "ready", ready)

    async def admissions(self) -> None:
        """Pods ask, one after the other."""
        self._teller.chapter(
            "Pods ask",
            "A container's slice comes from one card, unless the pod's label "
            "aliyun.com/gpu-count spreads it. The agent packs: of the cards where a slice fits, "
            "the one with the least memory free.",
        )
        verdicts = []
        for role in CAST:
            with self._teller.waiting(f"{role.node} admits {role.name}"):
                verdicts.append(await self._admit(role))
        self._teller.verdicts(verdicts)
        admitted = [role for role in CAST if role.lands_on]
        self._promises.check(
            "pods that fit are on the cards they should be on",
            {role.name: list(role.lands_on) for role in admitted},
            {role.name: self._cards_of(role) for role in admitted},
        )
        refused = [role for role in CAST if role.refused_for]
        self._promises.check(
            "pods that may not run are rejected, and hold nothing",
            {role.name: (True, {}) for role in refused},
            {role.name: (self._is_refused(role), self._holding(role)) for role in refused},
        )

    async def card_maps(self) -> None:
        """Who holds what, by the kubelet's books; the agent must agree."""
        self._teller.chapter(
            "Who holds what", "One letter is one memory unit; a dot is a unit that is free."
        )
        for node in self._nodes.values():
            roles = [role for role in CAST if role.node == node.name and role.lands_on]
            card_map = _card_map(node, roles)
            self._teller.card_map(card_map)
            expected = {row.index: sum(s.units for s in row.shares) for row in card_map.cards}
            seen = await settled(lambda n=node: _held_units(n), expected, _SOON_SECONDS)  # type: ignore[misc]
            what = f"{node.name}: the agent's metrics and the kubelet's books agree, units by card"
            self._promises.check(what, expected, seen)

    async def why(self) -> None:
        """The agent explains a choice."""
        pod = f"default/{CROWDED_OUT.name}"
        self._teller.chapter(
            f"Why is {CROWDED_OUT.name} not on card 0?",
            "Card 0 has memory enough for it. Any decision can be asked for on the node:",
        )
        with self._teller.waiting(f"asking the agent of {CROWDED_OUT.node}"):
            told = await self._nodes[CROWDED_OUT.node].command("why", pod)
        self._teller.quote(f"gpu-device-plugin why {pod}", told)
        card = CROWDED_OUT.lands_on[0]
        seen = f"card {card}" if f"decided  card {card}:" in told else told
        self._promises.check("`why` names the card that was chosen", f"card {card}", seen)

    async def receipts(self) -> None:
        """What containers are started with."""
        self._teller.chapter(
            "What a container receives",
            "Environment for the NVIDIA runtime (which cards to show) and for programs that "
            "divide a card among themselves (ALIYUN_COM_GPU_MEM_...).",
        )
        for role in (FIRST, TWO_CARDS):
            node = self._nodes[role.node]
            started = await node.start_container(role)
            self._teller.received(Received(role.name, node.name, started.env, started.mounts))
            what = f"{role.name} received exactly its environment"
            self._promises.check(what, _environment(node, role), dict(sorted(started.env.items())))
        expected = {str(FIRST.lands_on[0]): SLICE_OF_FIRST_MIB}
        seen = await settled(lambda: self._limit_mib(FIRST), expected, _SOON_SECONDS)
        what = f"{FIRST.name}: slice in MiB by card (16160 x 2 / 15, rounded down)"
        self._promises.check(what, expected, seen)

    async def refusals(self) -> None:
        """Why pods were refused, in the agent's words."""
        self._teller.chapter(
            "Why pods were refused",
            "The agent's words reach `kubectl describe pod` twice: in the pod's status and as "
            "an Event.",
        )
        for role in (role for role in CAST if role.refused_for):
            node = self._nodes[role.node]
            wanted = [role.refused_for]
            reasons = await settled(lambda n=node, r=role: _reasons(n, r), wanted, _SOON_SECONDS)  # type: ignore[misc]
            text = next((text for _, text in node.pod_events(role)), "")
            self._teller.quote(f"Event on pod default/{role.name}", text)
            self._promises.check(f"{role.name} has one Event, reason", wanted, reasons)
            is_told = bool(text) and text in self._admissions[role.name].message
            self._promises.check(f"{role.name}: the pod's status says the same", True, is_told)  # noqa: FBT003

    async def _admit(self, role: Role) -> Verdict:
        node = self._nodes[role.node]
        node.agent.check_runs()
        admission = self._admissions[role.name] = await node.admit(role)
        if admission.is_admitted:
            outcome = "card " + " and ".join(map(str, self._cards_of(role)))
        else:
            outcome = f"refused: {role.refused_for or admission.reason}"
        return Verdict(role.name, role.node, role.asks, admission.is_admitted, outcome)

    def _is_refused(self, role: Role) -> bool:
        return not self._admissions[role.name].is_admitted

    def _holding(self, role: Role) -> dict[int, tuple[int, int]]:
        return self._nodes[role.node].holding(role)

    def _cards_of(self, role: Role) -> list[int]:
        return sorted(self._holding(role))

    async def _limit_mib(self, role: Role) -> dict[str, int]:
        metric = "gpu_device_plugin_slice_memory_limit_bytes"
        found = await self._nodes[role.node].samples(metric, pod=role.name)
        return {card: int(limit) // _MIB for card, limit in found.items()}


async def _is_ready(node: DemoNode) -> str:
    """`ready`, or why not."""
    line = await node.readiness()
    return "ready" if line.startswith(f"ready: mode {node.mode}") else line


async def _held_units(node: DemoNode) -> dict[int, int]:
    metric = "gpu_device_plugin_units"
    found = await node.samples(metric, resource=str(Resource.MEM), state="held")
    return {int(card): int(units) for card, units in found.items()}


async def _reasons(node: DemoNode, role: Role) -> list[str]:
    return [reason for reason, _ in node.pod_events(role)]


def _offered(node: DemoNode, amounts: Sequence[int]) -> Offered:
    models = [str(card["model"]) for card in node.published_cards()]
    kinds = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    served = resources_of(node.mode)
    shown = tuple(
        amount if resource in served else None
        for resource, amount in zip(Resource, amounts, strict=True)
    )
    return Offered(node.name, str(node.mode), kinds, shown)


def _card_map(node: DemoNode, roles: Sequence[Role]) -> CardMap:
    rows = []
    for card in node.published_cards():
        index = int(str(card["index"]))
        held = ((role.name, node.holding(role).get(index)) for role in roles)
        shares = tuple(Share(name, *amounts) for name, amounts in held if amounts)
        rows.append(CardRow(index, int(str(card["units"])), bool(card["healthy"]), shares))
    has_compute = Resource.CORE in resources_of(node.mode)
    return CardMap(node.name, str(node.mode), has_compute, tuple(rows))


def _environment(node: DemoNode, role: Role) -> dict[str, str]:
    """What the container must receive (contract R-550), from the cards themselves."""
    if node.simulated is None:
        raise EdgeError(f"{node.name} has no simulated cards")
    cards = node.simulated.view().cards
    return {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(role.mem_units // len(role.lands_on)),
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(map(str, role.lands_on)),
        "ALIYUN_COM_GPU_MEM_POD": str(role.mem_units),
        "NVIDIA_VISIBLE_DEVICES": ",".join(cards[index].uuid for index in role.lands_on),
    }


NODES = (CORE_MEM_NODE, CGPU_NODE)
