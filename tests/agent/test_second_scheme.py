"""A second way of sharing needs its own module and its registration, and nothing else.

The shipped parts of the agent serve it, beside the first one and on other cards of the node.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.agent.agent_parts import running
from tests.agent.whole_cards import WHOLE_CARD, WholeCards
from tests.held import fraction
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import StandInContainer, StandInPod
from tools.harness.rig import stored_grants
from tools.harness.waiting import until

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.run_agent import run_agent
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.cards.nvml_reports import CardReport, Inventory, NvmlReport
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.call_state import Pending, Reservation
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.grant import Demand, Grant, Holder, Share
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import DoesNotFitError, KubeletError
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.nvml.nvml_source import NvmlSource
from gpu_device_plugin.settings.agent_settings import Settings, load_settings

MEM, CORE, COUNT = (str(each) for each in (Resource.MEM, Resource.CORE, Resource.COUNT))
ALL = {MEM: 30, CORE: 200, COUNT: 2, WHOLE_CARD: 2}


class Nvml(NvmlSource):
    """Four cards that are well."""

    def __init__(self, on_report: Callable[[NvmlReport], None]) -> None:
        super().__init__(None, on_report)

    async def run(self) -> None:
        """Report them once."""
        cards = tuple(
            CardReport(f"GPU-{i}", CardIndex(i), i, "V100", MiB(16160), "", is_mig=False)
            for i in range(4)
        )
        self._on_report(Inventory("535", "12.2", "1", cards))
        await asyncio.Event().wait()


class Api(NoCluster):
    """The API server, as far as pods are concerned."""

    def __init__(self, kubelet: StandInKubelet) -> None:
        self._kubelet = kubelet

    def specs(self) -> dict[tuple[str, str], PodRequest]:
        """Every pod that the kubelet was given."""
        return {(p.namespace, p.name): _request(p) for p in self._kubelet.pods.values()}

    def is_synced(self) -> bool:
        """They are all there."""
        return True


def _request(pod: StandInPod) -> PodRequest:
    containers = (
        ContainerRequest(c.name, ContainerKind.APP, i, c.limits)
        for i, c in enumerate(pod.containers)
    )
    return PodRequest(PodRef(pod.namespace, pod.name, pod.uid), tuple(containers))


def pod(name: str, **limits: int) -> StandInPod:
    names = {"mem": MEM, "core": CORE, "whole": WHOLE_CARD}
    main = StandInContainer("main", {names[key]: amount for key, amount in limits.items()})
    return StandInPod("default", name, f"uid-{name}", (main,))


@asynccontextmanager
async def agent(settings: Settings, kubelet: StandInKubelet) -> AsyncIterator[None]:
    """The agent, with cards 0 and 1 for fractions and the others whole."""
    schemes = Schemes((AliyunScheme(), WholeCards()), lambda card, _: int(card.index >= 2))
    edges = replace(
        real_edges(settings, schemes.resources), nvml=Nvml, cluster=lambda *_: Api(kubelet)
    )
    task = asyncio.create_task(run_agent(settings, edges, schemes))
    try:
        await until(lambda: task.done() or served(kubelet) == ALL, 20, lambda: served(kubelet))
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not served(kubelet), 20)


def served(kubelet: StandInKubelet) -> dict[str, int]:
    """What is allocatable of the plugins that are there."""
    links = kubelet.registry.links.items()
    there = [name for name, link in links if link.has_list and link.stopped_at is None]
    return {name: kubelet.allocatable(name) for name in there}


def at(root: Path) -> Settings:
    directories = {name: str(root / name) for name in ("state_dir", "run_dir", "library_dir")}
    own = {"node_name": "n1", "standalone": True, "isolation": "off", "kubelet_dir": str(root)}
    return load_settings({**own, **directories, "metrics_address": "127.0.0.1:0"}, {}, None)


def grants(settings: Settings) -> list[Grant]:
    """What is on disk."""
    schemes = Schemes((AliyunScheme(), WholeCards()))
    return stored_grants(GrantStore(Path(settings.state_dir), "", schemes=schemes))


async def recorded(settings: Settings) -> list[Grant]:
    """The whole cards that the agent has recorded, as soon as there are any."""
    found: list[Grant] = []

    def is_there() -> bool:
        found[:] = [g for g in grants(settings) if WHOLE_CARD in g.units]
        return bool(found)

    await until(is_there, 20)
    return found


async def test_whole_cards_are_served_beside_fractions_by_the_shipped_parts(
    short_dir: Path, kubelet: StandInKubelet
) -> None:
    """Offered, given, recorded in the ledger of the fractions, and again after it was lost."""
    settings = at(short_dir)
    await kubelet.start()
    async with agent(settings, kubelet):
        assert (await kubelet.admit(pod("fraction", mem=2, core=30))).is_admitted
        assert (await kubelet.admit(pod("whole", whole=1))).is_admitted
        options = await kubelet.start_container("uid-whole", "main")
        (uuid,) = kubelet.held("uid-whole")["main", WHOLE_CARD]
        assert options.env["EXAMPLE_CARDS"] == uuid
        assert uuid in {"GPU-2", "GPU-3"}
        (held,) = await recorded(settings)
    assert (held.pod.name, held.shares) == (
        "whole",
        (Share(uuid, 16160 << 20, is_exclusive=True, memory_mib=MiB(16160)),),
    )
    for path in Path(settings.state_dir).glob("grants*"):
        path.unlink()

    async with agent(settings, kubelet):
        await kubelet.start_container("uid-whole", "main")
        (again,) = await recorded(settings)
    assert (again.pod.name, again.ids(WHOLE_CARD)) == ("whole", (uuid,))


async def test_one_container_holds_of_both_schemes(
    short_dir: Path, kubelet: StandInKubelet
) -> None:
    """Neither scheme ends the other's grant, whichever resource the kubelet asks for first."""
    settings = at(short_dir)
    await kubelet.start()
    async with agent(settings, kubelet):
        for name in ("both", "second"):
            assert (await kubelet.admit(pod(name, mem=2, core=30, whole=1))).is_admitted
            await kubelet.start_container(f"uid-{name}", "main")
        await until(lambda: len(grants(settings)) == 4, 20, lambda: grants(settings))
        held = [(g.pod.name, len(g.units)) for g in grants(settings)]
    assert sorted(held) == [("both", 1), ("both", 2), ("second", 1), ("second", 2)]


async def test_a_card_that_was_just_given_is_refused_before_its_holder_is_recorded(
    short_dir: Path, kubelet: StandInKubelet
) -> None:
    """By the checkpoint and Get; what an init container hands on within its pod is given."""
    settings = at(short_dir)
    await kubelet.start()
    async with agent(settings, kubelet):
        first = StandInContainer("first", {WHOLE_CARD: 1}, ContainerKind.INIT)
        both = pod("both", whole=1)
        both = replace(both, containers=(first, *both.containers))
        for each in (pod("alone", whole=1), both):
            assert (await kubelet.admit(each)).is_admitted
        link = kubelet.registry.links[WHOLE_CARD]
        for each in (pod("alone"), both):
            held = kubelet.held(each.uid)["main", WHOLE_CARD]
            with pytest.raises(KubeletError, match=f"that pod default/{each.name} still holds"):
                await link.allocate(tuple(held))


@pytest.mark.parametrize("has_get", [True, False])
async def test_a_card_whose_holder_lives_is_refused_though_the_kubelet_gives_it_away(
    short_dir: Path,
    kubelet: StandInKubelet,
    has_get: bool,  # noqa: FBT001
) -> None:
    """Kubernetes issue 137534; once the kubelet says that the holder has it no more, it is free.

    By Get, or by the checkpoint where there is no Get.
    """
    settings = at(short_dir)
    kubelet.pod_resources.has_get = has_get
    await kubelet.start()
    async with agent(settings, kubelet):
        assert (await kubelet.admit(pod("first", whole=1))).is_admitted
        (held,) = await recorded(settings)
        link = kubelet.registry.links[WHOLE_CARD]
        with pytest.raises(KubeletError, match="that pod default/first still holds"):
            await link.allocate(held.ids(WHOLE_CARD))
        with pytest.raises(KubeletError, match="invalid request: unknown device: GPU-0"):
            await link.allocate(("GPU-0",))
        kubelet.remove("uid-first")
        # The checkpoint is written again at the next admission only: without Get the record ends
        # with a reconcile pass.
        if has_get:
            await link.allocate(held.ids(WHOLE_CARD))


async def test_a_grant_ends_none_of_another_scheme_of_its_container(short_dir: Path) -> None:
    """A kubelet that forgot admits a container again: what it held of this scheme is replaced."""
    settings = at(short_dir)
    for name in (settings.state_dir, settings.run_dir, settings.library_dir):
        Path(name).mkdir()
    cards = tuple(
        Card(f"GPU-{i}", CardNumber(i), CardIndex(i), i, "V100", MiB(16160)) for i in range(4)
    )
    schemes = Schemes((AliyunScheme(), WholeCards()), lambda card, _: int(card.index >= 2))
    wiring = Wiring(settings, schemes=schemes)
    wiring.node_store.update(mode=NodeMode.CORE_MEM, cards=cards)
    spec = _request(pod("both", mem=2, core=30, whole=1))
    holder = Holder(spec.ref, "main")
    units: dict[str, tuple[str, ...]] = {WHOLE_CARD: ("GPU-2",)}
    await wiring.ledger_store.hold(Grant("whole", holder, units, is_isolated=False))
    await wiring.ledger_store.hold(fraction("old", spec.ref, "main", units={MEM: ("m00",)}))

    chosen = Reservation(holder, Demand(Units(2), 30), cards[:1], "", request=spec)
    pending = Pending(Caller(spec.ref, spec, spec.containers[0]), chosen)
    call = Call(MEM, 2, frozenset({"m01", "m02"}))
    scheme, view = schemes.find_deciding(MEM, wiring.node_store.read())
    made = await wiring.admission.grant(pending, call, scheme, view)

    assert set(wiring.ledger_store.ledger.grants) == {"whole", made.slice_id}


ListPods: TypeAlias = Callable[[], Awaitable[list[ListedPod]]]
GetPod: TypeAlias = Callable[[PodRef], Awaitable[ListedPod | None]]


class Pods(PodResources):
    """PodResources List and Get as a test has them."""

    def __init__(self, list_pods: ListPods | None, get_pod: GetPod | None) -> None:
        super().__init__(Path("kubelet.sock"))
        self._list_pods = list_pods
        self._get_pod = get_pod

    async def list(self) -> tuple[ListedPod, ...]:
        """What the test says now."""
        if self._list_pods is None:
            raise KubeletError("away")
        return tuple(await self._list_pods())

    async def get(self, pod: PodRef) -> ListedPod | None:
        """The same."""
        if self._get_pod is None:
            raise KubeletError("away")
        return await self._get_pod(pod)


@asynccontextmanager
async def switching(
    root: Path, list_pods: ListPods | None = None, get_pod: GetPod | None = None
) -> AsyncIterator[tuple[Wiring, Callable[[str], None]]]:
    """An agent whose one card changes from one scheme to the other, and who has it now."""
    settings, owner = at(root), [0]
    for name in (settings.state_dir, settings.run_dir, settings.library_dir):
        Path(name).mkdir()
    schemes = Schemes((AliyunScheme(), WholeCards()), lambda _card, _state: owner[0])
    edges = replace(
        real_edges(settings, schemes.resources),
        pods=Pods(list_pods, get_pod),
        checkpoint=lambda: None,
    )
    wiring = Wiring(settings, edges, schemes)
    card = Card("GPU-0", CardNumber(0), CardIndex(0), 0, "V100", MiB(16160))
    wiring.node_store.update(mode=NodeMode.CORE_MEM, cards=(card,))
    yield wiring, lambda name: owner.__setitem__(0, ["fractions", "whole"].index(name))


async def test_a_card_of_which_a_fraction_is_held_is_not_given_whole(short_dir: Path) -> None:
    """Though the kubelet, which knows other resources, offers it; unless the pod is gone."""
    living = [ListedPod(PodRef("default", "small"), {"main": {MEM: frozenset({"m00"})}})]

    async def get(_: PodRef) -> ListedPod | None:
        return living[0] if living else None

    async with switching(short_dir, get_pod=get) as (wiring, give_to):
        small = fraction(
            "s1", PodRef("default", "small", "u"), "main", units={MEM: ("m00",)}, cards=("GPU-0",)
        )
        await wiring.ledger_store.hold(small)
        give_to("whole")

        with pytest.raises(DoesNotFitError, match="GPU-0 is not free: pod default/small holds"):
            await wiring.calls.allocate(WHOLE_CARD, ["GPU-0"])
        living.clear()
        await wiring.calls.allocate(WHOLE_CARD, ["GPU-0"])


async def test_of_a_card_that_a_pod_has_whole_no_fraction_is_given(short_dir: Path) -> None:
    """Its scheme counts the grants of the others."""
    living: list[ListedPod] = []

    async def list_pods() -> list[ListedPod]:
        return living

    async with switching(short_dir, list_pods) as (wiring, _):
        share = Share("GPU-0", 16160 << 20, is_exclusive=True, memory_mib=MiB(16160))
        holder = Holder(PodRef("default", "whole", "u"), "main")
        await wiring.ledger_store.hold(
            Grant("w1", holder, {WHOLE_CARD: ("GPU-0",)}, (share,), is_isolated=False)
        )
        spec = _request(pod("small", mem=1, core=10))
        living += [ListedPod(holder.pod), ListedPod(spec.ref)]
        sources = replace(wiring.caller_lookup.sources, specs=lambda: {spec.ref.key: spec})
        wiring.caller_lookup.sources = sources
        with pytest.raises(DoesNotFitError, match="held by a pod that wants no other beside it"):
            await wiring.calls.prefer(MEM, [f"m0{n}" for n in range(10)], [], 1)


async def test_who_holds_is_not_known_until_an_answer_was_read_back(short_dir: Path) -> None:
    """So neither mode nor unit changes under a whole card that is not in the ledger yet."""
    answers: list[list[ListedPod]] = [[]]

    async def list_pods() -> list[ListedPod]:
        if not answers:
            raise KubeletError("away")
        return answers[0]

    async with switching(short_dir, list_pods) as (wiring, give_to):
        reconciler = wiring.reconciler

        def holders() -> Sequence[str] | None:
            return wiring.holders.every()

        give_to("whole")
        assert await reconciler.run_pass()
        assert holders() == ()

        answers.clear()
        await wiring.calls.allocate(WHOLE_CARD, ["GPU-0"])
        assert holders() is None
        assert not await reconciler.run_pass()
        assert holders() is None

        late = PodRef("default", "whole")
        answers.append([ListedPod(late, {"main": {WHOLE_CARD: frozenset({"GPU-0"})}})])
        async with running(reconciler.run()):
            await until(lambda: holders() is not None, 20)
        assert holders() == ("default/whole",)
