"""Fractions of a card under the names of Alibaba Cloud's shared GPU scheduling."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.decision import FractionDecisions
from gpu_device_plugin.domain.fractions.demands import (
    asked_text,
    demand,
    parse_claim_name,
    requesting_container,
    wants_whole_card,
)
from gpu_device_plugin.domain.fractions.fraction import (
    Fraction,
    check_ids,
    fraction_of,
    is_bare,
    limit_of,
    of_record,
    units_per_card,
    with_amounts,
    with_amounts_read,
    without_growth,
)
from gpu_device_plugin.domain.fractions.pod_annotations import pod_annotations, whole_cards
from gpu_device_plugin.domain.fractions.request_rules import CORE_STEP_PERCENT, Ask, Known, check
from gpu_device_plugin.domain.fractions.room import most_pods
from gpu_device_plugin.domain.fractions.slice_size import slice_bytes
from gpu_device_plugin.domain.fractions.units import (
    CORE_UNITS_PER_CARD,
    Resource,
    cards_of,
    foreign_ids,
    resources_of,
    unit_ids,
    units_of,
)
from gpu_device_plugin.domain.grants.call_state import Reservation
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.claims import MAX_SLOTS, AllocatedDevice, Capacity
from gpu_device_plugin.domain.grants.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    NIX_PRELOAD_FILE,
    PRELOAD_FILE,
    REGION_FILE,
    SELFTEST_FILE,
    VISIBLE_DEVICES,
    ContainerEdits,
    DeviceAccess,
    DeviceNode,
    ListStrategy,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.grants.grant import Demand, Grant, GrantedIn, Holder, NewGrant, Share
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.ungranted_units import UngrantedUnits, ungranted_units
from gpu_device_plugin.domain.node.modes import NodeMode, is_isolated
from gpu_device_plugin.domain.node.pods import ContainerKind, HeldUnits, PodRequest
from gpu_device_plugin.domain.node.state import DeviceGroup, Layout, NodeState, Pool, UnitCount
from gpu_device_plugin.errors import RequestError


def environment(
    grant: Grant, cards: Sequence[Card], state: NodeState, access: DeviceAccess
) -> dict[str, str]:
    """The cards, and figures for applications (R-550)."""
    fraction = fraction_of(grant)
    envs = {
        VISIBLE_DEVICES: access.visible(card.uuid for card in cards),
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(str(card.index) for card in cards),
        # Applications divide CONTAINER by DEV: of unequal cards the larger is the safe one.
        "ALIYUN_COM_GPU_MEM_DEV": str(max(card.capacity(fraction.unit) for card in cards)),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units_per_card(grant)),
        "ALIYUN_COM_GPU_MEM_POD": str(fraction.pod_units),
    }
    if is_bare(grant) and state.wants_isolation:
        envs["CGPU_DISABLE"] = "true"
    if grant.is_isolated:
        envs["NVIDIA_DRIVER_CAPABILITIES"] = state.driver_capabilities
    return envs


def isolation_mounts(grant: Grant, paths: Paths) -> tuple[Mount, ...]:
    """The limits, what the container writes, and the library."""
    if not grant.is_isolated:
        return ()
    mine = f"{paths.run_dir}/slices/{grant.slice_id}"
    library = f"{paths.library_dir}/{paths.library_version}"
    return (
        Mount(CONFIG_DIR, f"{mine}/config", is_read_only=True),
        Mount(REGION_FILE, f"{mine}/region", is_read_only=False),
        *(mount for uuid in grant.devices for mount in _activity(uuid, grant.slice_id, paths)),
        Mount(LIBRARY_FILE, f"{library}/libgpuslice.so", is_read_only=True),
        Mount(PRELOAD_FILE, f"{library}/ld.so.preload", is_read_only=True),
        Mount(NIX_PRELOAD_FILE, f"{library}/ld.so.preload", is_read_only=True),
        *(
            (Mount(SELFTEST_FILE, f"{library}/gpu-selftest", is_read_only=True),)
            if paths.has_selftest
            else ()
        ),
    )


def _activity(uuid: str, slice_id: str, paths: Paths) -> tuple[Mount, Mount]:
    """The activity files of a card, read-only, and over them the slice's own, writable."""
    inside, outside = f"{CARDS_DIR}/{uuid}", f"{paths.run_dir}/cards/{uuid}"
    return (
        Mount(inside, outside, is_read_only=True),
        Mount(f"{inside}/{slice_id}", f"{outside}/{slice_id}", is_read_only=False),
    )


def device_nodes(
    cards: Sequence[Card], access: DeviceAccess, paths: Paths
) -> tuple[DeviceNode, ...]:
    """The nodes of the cards and of the driver, where answers pass them."""
    if not access.passes_nodes or access.is_cdi_only:
        return ()
    nodes = (*(f"/dev/nvidia{card.minor}" for card in cards), *paths.control_devices)
    return tuple(DeviceNode(path, path, "rw") for path in nodes)


class AliyunScheme(FractionDecisions):
    """gpu-mem, gpu-core.percentage and gpu-count, as the node's mode serves them."""

    resources: Collection[str] = frozenset(Resource)

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """Every unit of every card; a card that is out stays in capacity."""
        if state.mode is None:
            return ()
        return tuple(
            Pool(resource, tuple(_groups(resource, state))) for resource in resources_of(state.mode)
        )

    def serves(self, resource: str, state: NodeState) -> bool:
        return state.mode is not None and resource in resources_of(state.mode)

    def annotations(
        self, grants: Sequence[Grant], state: NodeState, assume_time_ns: int
    ) -> Mapping[str, str]:
        """The annotations in both published generations (R-540)."""
        return pod_annotations(grants, state.cards, assume_time_ns) | whole_cards(grants)

    def claiming_container(self, grant: Grant, spec: PodRequest) -> str:
        """The container, by the claim's name; for whole cards by its request, or the only one that asks."""
        shape = parse_claim_name(grant.holder.claim_name)
        if shape is None:
            at = requesting_container(grant.holder.claim.partition(".")[2])
            asking = spec.asking if at is None else spec.containers[at : at + 1]
            return asking[0].name if len(asking) == 1 else ""
        place = shape.is_app, shape.index
        named = (c for c in spec.containers if (c.kind is ContainerKind.APP, c.index) == place)
        return next((container.name for container in named), "")

    def with_claims(
        self, counts: Mapping[str, Sequence[UnitCount]], ledger: Ledger
    ) -> Mapping[str, Sequence[UnitCount]]:
        """Counts by card, with what claims hold, which has no ids, moved from free to held."""
        claims = [grant for grant in ledger.grants.values() if grant.holder.claim]
        return {
            card: _with_claims(units, [grant for grant in claims if card in grant.devices])
            for card, units in counts.items()
        }

    def layout(self, state: NodeState) -> Layout:
        """A card with less memory than a unit has nothing to give, and so a node of such cards."""
        is_divided = Resource.MEM in resources_of(state.terms.mode)
        small = [c for c in state.cards if is_divided and not c.capacity(state.unit)]
        texts = tuple(_too_small(card, state.unit) for card in small)
        if texts and len(small) == len(state.cards):
            return Layout(f"every card of this node is too small: {texts[0]}")
        return Layout(left_out=texts)

    def asked_text(self, resource: str, amount: int, state: NodeState) -> str:
        """`aliyun.com/gpu-mem: 2 (units of 1024 MiB)`."""
        return asked_text(resource, amount, state.unit)

    def capacity(self, card: Card, state: NodeState) -> Capacity | None:
        """Memory in units, and compute where the mode divides it; a label may allow no pod on it."""
        resources = resources_of(state.terms.mode)
        most = most_pods(state.terms.mode, state.max_pods)
        slots = MAX_SLOTS if most is None else min(most, MAX_SLOTS)
        units, mib = card.capacity(state.unit), state.unit.mib
        if Resource.MEM not in resources or not units or not slots:
            return None
        core = CORE_UNITS_PER_CARD if Resource.CORE in resources else 0
        return Capacity(MiB(units * mib), mib, core, CORE_STEP_PERCENT, slots)

    def claim_demand(self, devices: Sequence[AllocatedDevice], state: NodeState) -> Demand:
        """The demand in units and percent, the same of each card; refused where mode or unit have changed."""
        terms, first, cards = state.terms, devices[0], len(devices)
        unit, divides_cores = terms.unit.mib, terms.mode is NodeMode.CORE_MEM
        amounts = {(each.memory_mib, each.core_percent) for each in devices}
        if (
            len(amounts) > 1
            or not first.memory_mib
            or first.memory_mib % unit
            or (first.core_percent > 0) is not divides_cores
        ):
            told = ", ".join(
                f"{each.memory_mib} MiB and {each.core_percent} % of {each.device}"
                for each in devices
            )
            raise RequestError(
                f"node {terms.node} (mode {terms.mode}, units of {unit} MiB) cannot give {told}: they "
                f"were allocated while it had another mode or unit; create the pod again",
                reason="OtherAmounts",
            )
        return Demand(Units(first.memory_mib // unit * cards), first.core_percent, cards)

    def grant(self, chosen: Reservation, new: NewGrant, state: NodeState) -> Grant:
        """The decision, in units and percent."""
        asked, request, holder = chosen.demand, chosen.request, chosen.holder
        pod_units = Units(request.app_amount(Resource.MEM)) if request else asked.mem_units
        grant = Grant(
            slice_id=new.slice_id,
            holder=holder,
            shares=tuple(
                Share(card.uuid, is_exclusive=asked.is_exclusive) for card in chosen.cards
            ),
            is_isolated=new.is_isolated,
            is_checked=bool(holder.container or holder.claim),
            library_version=state.library_version if new.is_isolated else "",
            created_seconds=new.created_seconds,
            compute_policy=state.policy_for(request),
        )
        own = Fraction(asked.mem_units, pod_units, state.unit.mib, state.terms.mode)
        return with_amounts(grant, own, asked.core_percent)

    def give(self, grant: Grant, call: Call, state: NodeState, *, is_known: bool) -> Grant:
        """Without the pod spec, only the units given so far are known of its request."""
        grant = grant.with_ids(call.resource, call.must_include)
        if not is_known:
            units, percent = Units(len(grant.ids(Resource.MEM))), len(grant.ids(Resource.CORE))
            own = replace(fraction_of(grant), mem_units=units, pod_units=units)
            grant = with_amounts(grant, own, percent)
        return grant if is_known and grant.is_sized else self.with_size(grant, state)

    def with_size(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with its memory on each card in bytes, as the cards are now.

        A card that is away leaves the sizes unknown; one that shows less than was granted (for
        instance to a grant made again from the kubelet's checkpoint) gives what it has.
        """
        unit, each = fraction_of(grant).unit, limit_of(grant).units // max(1, len(grant.shares))
        cards = [card for card in map(state.card, grant.devices) if card is not None]
        sizes: Iterable[int | None] = [None] * len(grant.shares)
        if each and len(cards) == len(grant.shares):
            units = [Units(min(each, card.capacity(unit))) for card in cards]
            sizes = [slice_bytes(c, n, unit) if n else 0 for c, n in zip(cards, units, strict=True)]
        sized = zip(grant.shares, sizes, strict=True)
        return replace(grant, shares=tuple(replace(s, memory_bytes=size) for s, size in sized))

    def without_growth(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with no more than its request."""
        return self.with_size(without_growth(grant), state)

    def check_spec(self, grant: Grant, spec: PodRequest, state: NodeState) -> Grant:
        """The runtime class, the percentage, the label for several cards, and what goes with what."""
        state.check_runtime(spec if grant.is_isolated else None)
        container = spec.container(grant.container)
        if container is None:
            return replace(grant, compute_policy=state.policy_for(spec))
        demand(spec, container, state.terms)
        ask = Ask(
            Known.LATE,
            f"pod {spec.ref}, container {container.name}, on node {state.node}",
            state.terms.mode,
            {Resource.MEM: len(grant.ids(Resource.MEM))},
            spec.card_count_label,
            spec.card_label,
            cards_held=len(cards_of(grant.all_ids)),
            is_alone=all(share.is_exclusive for share in grant.shares),
        )
        check(ask)
        pod = replace(spec.ref, uid=grant.pod.uid or spec.ref.uid)
        return replace(
            grant,
            holder=Holder(pod, container.name, container.kind, container.index),
            own=replace(fraction_of(grant), pod_units=Units(spec.app_amount(Resource.MEM))),
            compute_policy=state.policy_for(spec),
            is_checked=True,
        )

    def check_shape(self, grant: Grant, state: NodeState) -> None:
        """core_mem serves memory and compute together (R-526)."""
        subject = (
            f"pod {grant.pod}, container {grant.container or '(not known)'}, asks for one of "
            f"gpu-mem and gpu-core.percentage only; node {state.node} is in mode core_mem and "
            f"serves them together"
        )
        amounts = {str(resource): len(grant.ids(resource)) for resource in Resource}
        check(Ask(Known.UNITS, subject, fraction_of(grant).mode, amounts))

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        """Grants made from the units' ids, which tell card and amount.

        Units of a card that is away wait for it: a grant without it could never be served. Units of another
        plugin that serves our names are not touched, nor is their pod.
        """
        known = {card.number for card in state.cards}
        own = [each for each in held if not foreign_ids(each.resource, each.ids)]
        return tuple(
            _adopt(each, state)
            for each in ungranted_units(own, specs)
            if each.parts.keys() != {Resource.COUNT} and cards_of(each.ids) <= known
        )

    def restore(self, grant: Grant, record: Mapping[str, object]) -> Grant:
        """A slice of a mode without isolation has no cap, whatever was written (R-505)."""
        check_ids(grant.units)
        check_ids(grant.resized.extra if grant.resized else {})
        own = of_record(record)
        isolates = grant.is_isolated and is_isolated(own.mode)
        return with_amounts_read(replace(grant, is_isolated=isolates), own)

    def granted_in(self, grant: Grant) -> GrantedIn:
        return GrantedIn(fraction_of(grant).mode, fraction_of(grant).unit)

    def held_text(self, grant: Grant) -> str:
        """`2 units, 30 % compute (fixed); memory by library, compute by library`."""
        units, percent = limit_of(grant)
        core = f", {percent} % compute ({grant.compute_policy})" if percent else ""
        return f"{units} units{core}; {grant.enforcers}"

    def answers(self, resource: str) -> bool:
        """The whole answer rides on gpu-mem (R-550): the kubelet merges several at random."""
        return resource == Resource.MEM

    def edits(
        self,
        grant: Grant,
        cards: Sequence[Card],
        state: NodeState,
        access: DeviceAccess,
        paths: Paths,
    ) -> ContainerEdits:
        """Cards, figures for applications, and what isolation mounts.

        All but how the cards are reached follows from the grant: a repeated Allocate has the same answer.
        """
        ids = (card.index if access.is_by_index else card.uuid for card in cards)
        cdi_names = tuple(f"{access.cdi_kind}={each}" for each in ids)
        return ContainerEdits(
            envs=environment(grant, cards, state, access),
            mounts=isolation_mounts(grant, paths)
            + access.mounts(card.uuid for card in cards)
            + paths.driver,
            devices=device_nodes(cards, access, paths),
            cdi_names=cdi_names if ListStrategy.CDI_CRI in access.strategies else (),
            annotations=access.annotations(cdi_names, grant.slice_id),
        )


def _groups(resource: Resource, state: NodeState) -> Iterable[DeviceGroup]:
    healthy = state.healthy
    for card in state.cards:
        units = units_of(card, resource, state.unit)
        yield DeviceGroup(unit_ids(resource, card.number, units), healthy[card.uuid], card.uuid)


def _too_small(card: Card, unit: MemoryUnit) -> str:
    fitting = [other.value for other in MemoryUnit if other.mib <= card.memory_mib]
    cure = f"--memory-unit {fitting[-1]} would use it" if fitting else "no unit is so small"
    if card.hardware.is_unified:
        cure = (
            "it cannot be divided: it uses the system's memory, less --unified-memory-reserve-mib"
        )
    name = f"card {card.index} ({card.uuid})"
    return f"{name} has {card.memory_mib} MiB, less than a unit of {unit.mib} MiB, and counts for nothing; {cure}"


def _with_claims(counts: Iterable[UnitCount], claims: Sequence[Grant]) -> tuple[UnitCount, ...]:
    held = {
        str(Resource.MEM): sum(map(units_per_card, claims)),
        str(Resource.CORE): sum(grant.core_percent for grant in claims),
    }
    return tuple(
        UnitCount(each.resource, each.free - moved, each.held + moved)
        for each in counts
        for moved in (min(each.free, held.get(each.resource, 0)),)
    )


def _adopt(of: UngrantedUnits, state: NodeState) -> Grant:
    """The id is that of the checkpoint's answer, whose files running containers have mounted.

    Without one it is derived from pod and container, so that adopting twice gives the same. What
    needs a pod spec that is not known stays unchecked.
    """
    mem, core = (
        tuple(sorted(of.parts[resource].ids)) if resource in of.parts else ()
        for resource in (Resource.MEM, Resource.CORE)
    )
    numbers, mode = cards_of((*mem, *core)), state.terms.mode
    version = max(part.library_version for part in of.parts.values())
    units = Units(len(mem))
    pod_units = Units(of.spec.app_amount(Resource.MEM)) if of.spec else units
    on = [c for c in sorted(state.cards, key=lambda c: c.index) if c.number in numbers]
    try:
        policy = state.policy_for(of.spec)
    except RequestError:  # the container runs already
        policy = state.compute_policy
    grant = Grant(
        slice_id=max(part.slice_id for part in of.parts.values()) or of.derived_id("adopted"),
        holder=of.holder,
        units={Resource.MEM: mem, Resource.CORE: core},
        shares=tuple(Share(card.uuid, is_exclusive=wants_whole_card(of.spec)) for card in on),
        compute_policy=policy,
        is_isolated=bool(version) and is_isolated(mode),
        is_checked=of.is_known,
        library_version=version,
    )
    return with_amounts(grant, Fraction(units, pod_units, state.unit.mib, mode), len(core))
