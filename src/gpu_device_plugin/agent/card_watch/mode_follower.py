"""The node's mode, placement, compute policy and unit, which follow its labels without harming running pods.

At the start the last known label counts until the API answers. If none is known, the agent waits
and does not guess, because a node that offers the wrong resources attracts the wrong pods.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.agent.card_watch.allocation_api_choice import AllocationApiChoice
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.mps_serving import kept_by_daemon
from gpu_device_plugin.disk.state_file import Memory, NodeRecord
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.grant import GrantedIn
from gpu_device_plugin.domain.node.allocation_api import (
    ALLOCATION_API_LABEL,
    AllocationApi,
    parse_allocation_api,
)
from gpu_device_plugin.domain.node.compute_policy import (
    COMPUTE_POLICY_KEY,
    KNOWN_POLICIES,
    ComputePolicy,
    node_compute_policy,
)
from gpu_device_plugin.domain.node.memory_enforcer import MEMORY_ENFORCER_LABEL, EnforcerChoice
from gpu_device_plugin.domain.node.modes import (
    MAX_PODS_LABEL,
    MIG_PROFILE_LABEL,
    MODE_LABEL,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    next_mode,
    parse_max_pods,
    parse_mode,
    parse_policy,
    switch,
)
from gpu_device_plugin.domain.node.other_plugins import OtherPlugins
from gpu_device_plugin.settings.agent_settings import Settings

OTHERS_CURE = "nothing is offered. Remove it, or start with --allow-other-plugin"
_GOOD_NEWS = frozenset({"ModeSwitched", "UnitSwitched", "AllocationApiSwitched"})


@dataclass(eq=False)
class ModeFollower:
    """Follows the node's labels; a switch waits until no pod holds a slice.

    `divides` tells whether a resource is of fractions: what pods hold of others, another plugin may have given.
    """

    node_store: NodeStore
    recorder: EventRecorder
    memory: Memory[NodeRecord]
    settings: Settings
    holders: Callable[[Callable[[str], bool]], Sequence[str] | None]
    divides: Callable[[str], bool]

    def __post_init__(self) -> None:
        self._labels: Mapping[str, str] | None = None
        self._mode: NodeMode | None = None
        self._unit: MemoryUnit | None = None
        self.is_from_label = False
        self._is_synced = False
        self._foreign = self._answering = self._serving = ""
        self.others = OtherPlugins()
        """What the kubelet says of other plugins."""
        self.allocation_api_choice = AllocationApiChoice(self.settings, self._note)
        self._claimed: Sequence[str] | None = None
        self.registered: frozenset[str] = frozenset()
        """Resources that this node registered with the kubelet, also in earlier runs."""
        self.runtime = ""
        """The node's container runtime, remembered over a restart."""
        self._last_notes: dict[str, str] = {}
        self.is_waiting = False
        """Whether a switch of mode, unit or allocation API waits until nobody holds anything of the node."""

    async def load(
        self, now_seconds: float, granted: GrantedIn | None, *, has_claims: bool = False
    ) -> str | None:
        """Start in the mode of the last run, if any; returns what was damaged, or None.

        `granted` is mode and unit of grants of that run, `has_claims` that some are of claims: they
        count if its record is lost.
        """
        content, bad = await self.memory.load(now_seconds)
        self._mode = parse_mode(content.mode)
        self._unit = next((u for u in MemoryUnit if u.value == content.unit), None)
        if self._mode is None and granted is not None:
            self._mode, self._unit = granted
        # If the operator has changed the setting since, it replaces the remembered label's mode.
        is_same_wish = content.wished == str(self.settings.mode)
        self.is_from_label = content.is_from_label and is_same_wish
        self.registered, self.runtime = frozenset(content.registered), content.runtime
        root = content.mps_root
        self.node_store.update(mps_root=root, mps_served=kept_by_daemon(root))
        if content.mig_profile is not None:
            self.node_store.update(mig_profile=content.mig_profile)
        kept = parse_allocation_api(content.allocation_api)
        of_grants = AllocationApi.DEVICE_PLUGIN if granted else None
        of_grants = AllocationApi.DRA if has_claims else of_grants
        self.allocation_api_choice.kept = kept or of_grants
        self.note_foreign(content.foreign)
        others = OtherPlugins(frozenset(content.others), is_known=bool(content.registered))
        self.note_others(others, "")
        if self._mode is not None and content.labels is not None:
            self._labels = content.labels
            self.republish()
        return bad

    @property
    def labels(self) -> Mapping[str, str] | None:
        """The node's labels that decide over the mode, at first as the last run stored them; None while unknown."""
        return self._labels

    def serve_settings(self) -> None:
        """Without an API server (`--standalone`) the operator's settings decide."""
        self._labels, self.is_from_label, self._is_synced = {}, False, True
        self.note_foreign("")
        self.republish()

    def note_foreign(self, text: str) -> None:
        """Another plugin serves these cards, or none (empty); remembered over a restart."""
        self._foreign = text
        self._check_foreign()
        self.remember()

    def note_answering(self, text: str) -> None:
        """Another plugin answers on this node, or none (empty); every run finds out again."""
        self._answering = text
        self._check_foreign()

    def note_others(self, others: OtherPlugins, sockets: str) -> None:
        """Other plugins as the kubelet has them, remembered over a restart, and the sockets that answer where they are new."""
        is_new = others.names != self.others.names
        if is_new or sockets:
            answering = f" (sockets that answer: {sockets})" if sockets else ""
            names = ", ".join(sorted(others.names))
            self._serving = f"another device plugin serves {names}, or pods hold units of it{answering}; {OTHERS_CURE}"
        self.others = others
        self._check_foreign()
        if is_new:
            self.remember()

    def note_registered(self, resource: str) -> None:
        """The kubelet knows this resource by our registration; remembered, so that it is never foreign."""
        if resource not in self.registered:
            self.registered |= {resource}
            self.remember()

    def note_kubelet(self, version: str, runtime: str) -> None:
        """The versions of the node's kubelet and container runtime, for instance `v1.36.3` and `containerd://2.4.2`."""
        self.allocation_api_choice.kubelet_version, self.runtime = version, runtime

    def note_claims_refused(self, text: str) -> None:
        """The API server takes no offers for claims in these words, or may take them (empty)."""
        if text != self.allocation_api_choice.refused:
            self.allocation_api_choice.refused = text
            self.republish()

    def follow(self, labels: Mapping[str, str]) -> None:
        of_cards = (MODE_LABEL, PLACEMENT_LABEL, MAX_PODS_LABEL, MIG_PROFILE_LABEL)
        of_slices = (COMPUTE_POLICY_KEY, MEMORY_ENFORCER_LABEL, ALLOCATION_API_LABEL)
        self._is_synced = True
        wanted = (*of_cards, *of_slices, self.settings.node_label)
        self._labels = {key: labels[key] for key in wanted if key in labels}
        self.republish()

    def republish(self) -> None:
        """Decide again; called when labels change and when the last holder may be gone."""
        if self._labels is None:
            return
        holders = self.holders(self._keeps_mode)
        holders = self._claimed if self._asks_claims(holders) else holders
        wanted = self.settings.memory_unit
        reason = ("UnitSwitched", "UnitSwitchRefused")
        asked = f"memory unit {wanted.value}"
        unit = switch("unit", self._unit, wanted, asked, holders, reason=reason)
        self._note("unit", unit.note_reason, unit.note)
        label = self._labels.get(MODE_LABEL)
        mps = self.node_store.read().mps_keeper
        mode = next_mode(
            self._mode, label, self.settings.mode, holders, mps, is_from_label=self.is_from_label
        )
        self._note("mode", mode.note_reason, mode.note)
        self._mode, self._unit = mode.value, unit.value
        # A remembered label may have been removed since: only one that is there now counts more.
        self.is_from_label = self.is_from_label or (self._is_synced and label is not None)
        text = self._labels.get(ALLOCATION_API_LABEL)
        if not self._is_synced and self.allocation_api_choice.kept is AllocationApi.DEVICE_PLUGIN:
            text = AllocationApi.DEVICE_PLUGIN  # who serves claims has to be told by the API server
        api = self.allocation_api_choice.decide(text, mode.value, holders)
        self.is_waiting = any(each.is_switch_refused for each in (mode, unit, api))
        if self._mode is not NodeMode.DISABLED:
            self._check_foreign()
        self.node_store.update(
            mode=mode.value,
            unit=unit.value,
            policy=self._policy(),
            compute_policy=self._compute_policy(),
            memory_choice=self._memory_choice(),
            max_pods=self._max_pods(),
            allocation_api=api.value,
        )
        # A fault ends only when its mode has: in between the node would offer the other's cards.
        self._check_foreign()
        self.remember()

    def _keeps_mode(self, resource: str) -> bool:
        """Whether pods that hold it keep the node's mode; not what another plugin must have given."""
        return resource in self.registered or self.divides(resource)

    def republish_if_waiting(self) -> None:
        if self.is_waiting:
            self.republish()

    @property
    def waits_for_claims(self) -> bool:
        """Whether a switch waits for nothing but what the API server says of claims."""
        return self.is_waiting and self._asks_claims(self.holders(self._keeps_mode))

    def _asks_claims(self, holders: Sequence[str] | None) -> bool:
        is_known = holders is not None and not holders
        return is_known and self.allocation_api_choice.has_unprepared_claims

    def note_claims(self, pods: Sequence[str]) -> None:
        """Pods with claims to which cards of this node are allocated now; with none a switch is made."""
        self._claimed = pods
        self.republish()
        self._claimed = pods or None  # that there are none is true of this moment only

    def _policy(self) -> PlacementPolicy:
        text = (self._labels or {}).get(PLACEMENT_LABEL)
        policy = self.settings.placement if text is None else parse_policy(text)
        kept, known = self.node_store.read().policy, ", ".join(PlacementPolicy)
        wrong = (
            f"label {PLACEMENT_LABEL}={text} is not a known policy; keeping {kept}. Known: {known}"
        )
        self._note("placement", "UnknownPlacement", wrong if policy is None else None)
        return policy or kept

    def _max_pods(self) -> int | None:
        text = (self._labels or {}).get(MAX_PODS_LABEL)
        wanted, kept = parse_max_pods(text or ""), self.node_store.read().max_pods
        is_wrong = text is not None and wanted is None
        wrong = (
            f"label {MAX_PODS_LABEL}: value({text}) of max pod per device is invalid,it must be >= 0; "
            f"keeping {'no limit' if kept is None else kept}"
        )
        self._note("max pods", "BadMaxPods", wrong if is_wrong else None)
        return kept if is_wrong else wanted

    def _compute_policy(self) -> ComputePolicy:
        text = (self._labels or {}).get(COMPUTE_POLICY_KEY)
        wanted = node_compute_policy(text, self.settings.compute_policy)
        kept = self.node_store.read().compute_policy
        wrong = f"label {COMPUTE_POLICY_KEY}={text} is not a known policy; keeping {kept}. Known: {KNOWN_POLICIES}"
        self._note("compute policy", "UnknownComputePolicy", wrong if wanted is None else None)
        return wanted or kept

    def _memory_choice(self) -> EnforcerChoice:
        text, known = (self._labels or {}).get(MEMORY_ENFORCER_LABEL), tuple(EnforcerChoice)
        wanted = self.settings.memory_enforcer if text is None else None
        wanted = next((each for each in known if each == text), wanted)
        kept = self.node_store.read().memory_choice
        wrong = f"label {MEMORY_ENFORCER_LABEL}={text} is not a known memory enforcer; keeping {kept}. Known: {', '.join(known)}"
        self._note("memory enforcer", "UnknownMemoryEnforcer", wrong if wanted is None else None)
        return wanted or kept

    def _check_foreign(self) -> None:
        """A node that is disabled gives nothing away: there another plugin is no fault."""
        text = self._foreign or self._answering or (self._serving if self.others.names else "")
        text = "" if self._mode is NodeMode.DISABLED else text
        self.recorder.fault("OtherPlugin", text or None)

    def _note(self, topic: str, reason: str, text: str | None) -> None:
        """Report a thing once, not at every check."""
        if text is None:
            self._last_notes.pop(topic, None)
        elif self._last_notes.get(topic) != text:
            self._last_notes[topic] = text
            self.recorder.node_note(reason, text, is_warning=reason not in _GOOD_NEWS)

    def remember(self) -> None:
        """Store what the next run begins with, once the labels are known."""
        if self._labels is None:
            return
        content = NodeRecord(
            mode=str(self._mode),
            unit=self._unit.value if self._unit else "",
            labels=dict(self._labels or {}),
            is_from_label=self.is_from_label,
            wished=str(self.settings.mode),
            foreign=self._foreign,
            others=sorted(self.others.names),
            registered=sorted(self.registered),
            mps_root=self.node_store.read().mps_root,
            mig_profile=self.node_store.read().mig_profile,
            allocation_api=str(self.allocation_api_choice.kept or ""),
            runtime=self.runtime,
        )
        self.memory.save(content)
