"""The story, chapter by chapter: what happens, what is shown, what is promised."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.text import Text

from gpu_device_plugin.domain.fractions.units import Resource, resources_of
from gpu_device_plugin.domain.grants.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    NIX_PRELOAD_FILE,
    PRELOAD_FILE,
    REGION_FILE,
    SELFTEST_FILE,
)
from tools.demo.demo_node import DemoNode
from tools.demo.demo_output import CardHolders, CardShare, Promises, Teller, show_value, wait_for
from tools.demo.demo_pods import (
    CARDS_PER_NODE,
    CAST,
    CROWDED_OUT,
    FIRST,
    OFFERS,
    TWO_CARDS,
    UNITS_PER_CARD,
    Role,
)
from tools.harness.kubelet_pods import PodAdmission

LIMITS = "limits"
Mounts = Mapping[str, tuple[str, bool]]


def environment(node: DemoNode, role: Role) -> dict[str, str]:
    """Its variables (R-550), from the cards themselves."""
    return {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(role.mem_units // len(role.lands_on)),
        "ALIYUN_COM_GPU_MEM_DEV": str(UNITS_PER_CARD),
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(map(str, role.lands_on)),
        "ALIYUN_COM_GPU_MEM_POD": str(role.mem_units),
        "NVIDIA_VISIBLE_DEVICES": ",".join(_uuids(node, role)),
        **({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if node.is_isolated else {}),
    }


def mounts(node: DemoNode, role: Role) -> dict[str, str]:
    """Its mounts, by path in the container; none where isolation is off."""
    if not node.is_isolated:
        return {}
    read_only = [CONFIG_DIR, LIBRARY_FILE, NIX_PRELOAD_FILE, PRELOAD_FILE]
    if node.has_selftest:
        read_only.append(SELFTEST_FILE)
    cards = [f"{CARDS_DIR}/{uuid}" for uuid in _uuids(node, role)]
    return {
        **dict.fromkeys((*read_only, *cards), "read-only"),
        **dict.fromkeys((REGION_FILE, *(f"{card}/its slice" for card in cards)), "read-write"),
    }


def limits(found: Mounts) -> str:
    """The file of limits that it reads; empty where isolation is off."""
    host, _ = found.get(CONFIG_DIR, ("", True))
    try:
        return (Path(host) / LIMITS).read_text(encoding="utf-8") if host else ""
    except OSError as error:
        return f"{host}/{LIMITS}: {error.strerror}"


def limit_lines(node: DemoNode, role: Role) -> list[str]:
    """What that file must say of its cards."""
    core = f" core_percent={role.core_percent}" if role.core_percent else ""
    memory = f"memory_bytes={role.slice_mib << 20}"
    return [f"device={uuid} {memory}{core}" for uuid in _uuids(node, role)]


def _uuids(node: DemoNode, role: Role) -> list[str]:
    cards = node.cards.view().cards
    return [cards[index].uuid for index in role.lands_on]


def _without_slice(path: str) -> str:
    """A slice's id is random: it stands at the end of one path."""
    below = path.removeprefix(f"{CARDS_DIR}/")
    uuid, slash, _ = below.partition("/")
    return f"{CARDS_DIR}/{uuid}/its slice" if slash and below != path else path


def _state(host_path: str, is_read_only: bool) -> str:  # noqa: FBT001
    if not Path(host_path).exists():
        return f"{host_path} is missing"
    return "read-only" if is_read_only else "read-write"


START_SECONDS = 60.0
SOON_SECONDS = 30.0
_MIB = 1024 * 1024


class Story:
    """Tells of the nodes, in order."""

    def __init__(self, nodes: Mapping[str, DemoNode], teller: Teller, promises: Promises) -> None:
        self._nodes = nodes
        self._teller = teller
        self._promises = promises
        self._admissions: dict[str, PodAdmission] = {}

    async def offers(self) -> None:
        """The agents serve, and the kubelets count what they offer."""
        self._teller.chapter(
            "What the nodes offer",
            "A card of 16160 MiB is 15 memory units of 1 GiB (and a rest, which is shared out). "
            "The node label ack.node.gpu.schedule says how cards are divided: core_mem divides "
            "memory and compute, cgpu memory alone. The kubelets count as allocatable:",
        )
        seen, ready = {}, {}
        for offer in OFFERS:
            node = self._nodes[offer.node]
            with self._teller.waiting(f"waiting for the agent of {node.name} to register"):
                wanted = offer.allocatable
                seen[node.name] = await wait_for(node.allocatable, wanted, START_SECONDS)
                ready[node.name] = await wait_for(partial(_readiness, node), "ready", SOON_SECONDS)
                await wait_for(partial(_count_published, node), CARDS_PER_NODE, SOON_SECONDS)
        rows = [await _offered(self._nodes[offer.node]) for offer in OFFERS]
        amounts = ("gpu-mem", "gpu-core.%", "gpu-count")
        self._teller.table(("node", "mode", "cards"), rows, amounts)
        for offer in OFFERS:
            what = f"allocatable of {offer.node} (units, percent, cards)"
            self._promises.check(what, offer.allocatable, seen[offer.node])
        self._promises.check("/readyz of the agents", dict.fromkeys(ready, "ready"), ready)

    async def admissions(self) -> None:
        """Pods ask, one after the other."""
        self._teller.chapter(
            "Pods ask",
            "A container's slice comes from one card, unless the pod's label "
            "aliyun.com/gpu-count spreads it over several. The agent packs: of the cards where "
            "the slice fits, the one with the least memory free.",
        )
        with self._teller.waiting("the kubelets admit seven pods"):
            for role in CAST:
                node = self._nodes[role.node]
                node.agent.check_runs()
                self._admissions[role.name] = await node.admit(role)
            admitted = [role for role in CAST if role.lands_on]
            wanted = {role.name: dict.fromkeys(role.lands_on, role.slice_mib) for role in admitted}
            limits = await wait_for(self._limits_mib, wanted, SOON_SECONDS)
            verdicts = [await self._verdict(role) for role in CAST]
        self._teller.table(("pod", "on node", "asks", "gets"), verdicts)
        self._promises.check(
            "each pod that fits is where it should be, by card",
            {role.name: role.lands_on for role in admitted},
            {role.name: sorted(self._holding(role)) for role in admitted},
        )
        refused = [role for role in CAST if role.refused_for]
        self._promises.check(
            "a pod that does not is rejected, and holds nothing",
            {role.name: ("rejected", {}) for role in refused},
            {role.name: (self._phase(role), self._holding(role)) for role in refused},
        )
        what = f"slices in MiB are in proportion ({FIRST.name}: 16160 x 2/15 = {FIRST.slice_mib})"
        self._promises.check(what, wanted, limits)

    async def card_maps(self) -> None:
        """Who holds what, by the kubelet's counts; the agent must agree."""
        self._teller.chapter(
            "Who holds what", "A letter is a memory unit of that pod, a dot one that is free."
        )
        for node in self._nodes.values():
            cards = _holders(node, [role for role in CAST if role.node == node.name])
            has_compute = Resource.CORE in resources_of(node.mode)
            self._teller.card_map(node.name, cards, has_compute=has_compute)
            expected = {row.index: sum(s.units for s in row.shares) for row in cards}
            seen = await wait_for(partial(_held_units, node), expected, SOON_SECONDS)
            what = "the kubelet's counts and the agent's metrics agree, units by card"
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
        self._promises.check("chosen according to `why`", f"card {card}", seen)

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
            self._teller.received(role.name, node.name, started)
            expected = environment(node, role)
            self._promises.check(f"{role.name}: its environment, exactly", expected, started.env)
            is_off = "" if node.is_isolated else " (isolation is off)"
            seen = {_without_slice(path): _state(*m) for path, m in started.mounts.items()}
            what = f"{role.name}: its mounts, exactly{is_off}"
            self._promises.check(what, mounts(node, role), seen)
            if node.is_isolated:
                told = limits(started.mounts)
                self._teller.quote(f"its {LIMITS} file", told)
                lines = [line for line in told.splitlines() if line.startswith("device=")]
                what = f"{role.name}: its limits, exactly"
                self._promises.check(what, limit_lines(node, role), lines)

    async def refusals(self) -> None:
        """Why pods were refused, in the agent's words."""
        self._teller.chapter(
            "Why pods were refused",
            "`kubectl describe pod` shows the agent's text twice: in the pod's status and as "
            "an Event.",
        )
        for role in (role for role in CAST if role.refused_for):
            node = self._nodes[role.node]
            look = partial(_reasons, node, role)
            reasons = await wait_for(look, [role.refused_for], SOON_SECONDS)
            text = next((text for _, text in node.pod_events(role)), "")
            self._teller.quote(f"Event on pod default/{role.name}", text)
            what = f"reasons of Events on {role.name}"
            self._promises.check(what, [role.refused_for], reasons)
            is_same = bool(text) and text in self._admissions[role.name].message
            said = "that text" if is_same else self._admissions[role.name].message
            self._promises.check(f"the status of {role.name} carries", "that text", said)

    async def _verdict(self, role: Role) -> list[str | Text]:
        """How the admission of a pod ended: which cards and memory it got, or why it was refused."""
        held = sorted(self._holding(role))
        if self._phase(role) == "rejected":
            look = partial(_reasons, self._nodes[role.node], role)
            gets = f"refused: {show_value(await wait_for(look, [role.refused_for], SOON_SECONDS))}"
        else:
            limits = sorted(set((await _limit_mib(self._nodes[role.node], role)).values()))
            each = " each" if len(held) > 1 else ""
            cards = f"card{'s' if each else ''} {' and '.join(map(str, held))}"
            gets = f"{cards}: {show_value(limits)} MiB{each}"
        style = "green" if self._admissions[role.name].is_admitted else "red"
        return [role.name, role.node, role.asks, Text(gets, style=style)]

    def _phase(self, role: Role) -> str:
        return "admitted" if self._admissions[role.name].is_admitted else "rejected"

    def _holding(self, role: Role) -> dict[int, tuple[int, int]]:
        return self._nodes[role.node].holding(role)

    async def _limits_mib(self) -> dict[str, dict[int, int]]:
        admitted = ((role, self._nodes[role.node]) for role in CAST if role.lands_on)
        return {role.name: await _limit_mib(node, role) for role, node in admitted}


async def _limit_mib(node: DemoNode, role: Role) -> dict[int, int]:
    """Card -> MiB that the pod may use there, as the agent's metrics have it."""
    found = await node.samples("gpu_device_plugin_slice_memory_limit_bytes", pod=role.name)
    return {int(card): int(limit) // _MIB for card, limit in found.items()}


async def _count_published(node: DemoNode) -> int:
    return len(node.published_cards())


async def _readiness(node: DemoNode) -> str:
    """`ready`, or why not."""
    line = await node.readiness()
    return "ready" if line.startswith(f"ready: mode {node.mode}") else line


async def _held_units(node: DemoNode) -> dict[int, int]:
    metric = "gpu_device_plugin_units"
    found = await node.samples(metric, resource=str(Resource.MEM), state="held")
    return {int(card): int(units) for card, units in found.items()}


async def _reasons(node: DemoNode, role: Role) -> list[str]:
    return [reason for reason, _ in node.pod_events(role)]


async def _offered(node: DemoNode) -> list[str]:
    """Name, mode, cards and amounts, of which `-` is not offered in this mode."""
    models = [str(card["model"]) for card in node.published_cards()]
    kinds = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    served, counted = resources_of(node.mode), await node.allocatable()
    amounts = dict(zip(Resource, map(str, counted), strict=True))
    offered = (amounts[resource] if resource in served else "-" for resource in Resource)
    return [node.name, str(node.mode), kinds, *offered]


def _holders(node: DemoNode, roles: Sequence[Role]) -> list[CardHolders]:
    rows = []
    for card in node.published_cards():
        index = int(str(card["index"]))
        held = ((role.name, node.holding(role).get(index)) for role in roles)
        shares = tuple(CardShare(name, *amounts) for name, amounts in held if amounts)
        rows.append(CardHolders(index, int(str(card["units"])), shares))
    return rows
