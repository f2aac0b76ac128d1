"""A card that goes from fractions to whole cards, or back: each kind counts what the other gave of it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.agent.agent_parts import running
from tests.held import fraction
from tools.harness.waiting import until

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import DoesNotFitError, KubeletError
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.settings.agent_settings import load_settings

MEM, CORE, WHOLE_CARD = str(Resource.MEM), str(Resource.CORE), "nvidia.com/gpu"
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
    directories = {name: str(root / name) for name in ("state_dir", "run_dir", "library_dir")}
    for name in directories.values():
        Path(name).mkdir()
    own = {"node_name": "n1", "standalone": True, "isolation": "off", "kubelet_dir": str(root)}
    settings = load_settings({**own, **directories}, {}, None)
    edges = replace(
        real_edges(settings, OUR_RESOURCES), pods=Pods(list_pods, get_pod), checkpoint=lambda: None
    )
    wiring = Wiring(settings, edges)
    card = Card("GPU-0", CardNumber(0), CardIndex(0), 0, "V100", MiB(16160))
    modes = {"fractions": NodeMode.CORE_MEM, "whole": NodeMode.DEFAULT}
    wiring.node_store.update(mode=NodeMode.CORE_MEM, cards=(card,))
    yield wiring, lambda name: wiring.node_store.update(mode=modes[name])


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
            await wiring.device_calls.allocate(WHOLE_CARD, ["GPU-0"])
        living.clear()
        await wiring.device_calls.allocate(WHOLE_CARD, ["GPU-0"])


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
        asked = ContainerRequest("main", ContainerKind.APP, 0, {MEM: 1, CORE: 10})
        spec = PodRequest(PodRef("default", "small", "uid-small"), (asked,))
        living += [ListedPod(holder.pod), ListedPod(spec.ref)]
        sources = replace(wiring.caller_lookup.sources, specs=lambda: {spec.ref.key: spec})
        wiring.caller_lookup.sources = sources
        with pytest.raises(DoesNotFitError, match="held by a pod that wants no other beside it"):
            await wiring.fraction_calls.prefer(MEM, [f"m0{n}" for n in range(10)], [], 1)


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
        await wiring.device_calls.allocate(WHOLE_CARD, ["GPU-0"])
        assert holders() is None
        assert not await reconciler.run_pass()
        assert holders() is None

        late = PodRef("default", "whole")
        answers.append([ListedPod(late, {"main": {WHOLE_CARD: frozenset({"GPU-0"})}})])
        async with running(reconciler.run()):
            await until(lambda: holders() is not None, 20)
        assert holders() == ("default/whole",)
