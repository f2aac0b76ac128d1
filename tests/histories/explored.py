"""What histories have explored, counted; and how much of it a thousand of them must have.

A check that is never reached checks nothing, so too little of anything is a failure as well.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

MANY = 4
"""So many pods on a card, or more, are counted as one."""
_STEPS = (
    "create finish delete delete_by_force replace swap restart_container kill_agent agent_away stop_agent "
    "new_settings release_after recover restart_kubelet api_compacts xid card_cut limits_lost hooks_fail "
    "state_damaged region_grown sockets_wiped registration_refused list_not_taken later_rejection reboot "
    "configure clock_jumps label placement enforcer failpoint"
)
_TROUBLES = (
    "api away, api slow, api throttles, api behind, card asks for a reset, card lost, card unplugged, card in "
    "MIG mode, card slow, driver hangs, driver reloads, driver slow, CDI off, disk full, disk slow, foreign plugin"
)
_OFTEN = (
    "NoRoom StateNotWritable ModeSwitched ModeSwitchRefused ConfigurationChanged ConfigurationWaits ProbeHangs "
    "Recovered Lost Unplugged MigEnabled MigCardSkipped DriverMissing OtherPlugin XID48 XID79 StateFileBad"
)
_SOMETIMES = (
    "UnitSwitchRefused NVMLStalled XID63 XID94 BadPercentage CountRequested MemoryOnly UnknownMode ProcessLeft "
    "MigLeft DriverMissingOver OtherPluginOver StateNotWritableOver"
)
_SELDOM = (
    "UnknownPod ConfigurationRefused ComputeWithoutMemory ComputeNotServed UnknownMemoryEnforcer NoDevice "
    "DriverChanged CardSkipped DeviceLeftOut CardCountUnknown"
)
_SWITCHES = "core_mem to cgpu, core_mem to disabled, default to share"
AT_LEAST: Mapping[str, int] = {
    f"moments by holders of a card: {MANY}": 40_000,
    "moments with a container whose pod is forgotten": 800,
    "moments with a slow card and nothing else wrong": 300,
    "quiet moments": 2_000,
    "XIDs of an instance": 4,
    "refusals: judged": 100,
    "transitions: core_mem to default": 80,
    "transitions: core_mem to share": 15,
    **{f"steps: {name}": 30 for name in _STEPS.split()},
    **{f"troubles: {name}": 30 for name in _TROUBLES.split(", ")},
    **{f"reasons: {name}": 15 for name in _OFTEN.split()},
    **{f"reasons: {name}": 5 for name in _SOMETIMES.split()},
    **{f"reasons: {name}": 2 for name in _SELDOM.split()},
    **{f"events: {name}": 30 for name in ("RegionGrown", "DriverLimitSet")},
    **{f"transitions: {name}": 1 for name in _SWITCHES.split(", ")},
}
"""By a thousand histories."""
_ENOUGH = 200  # histories that are judged by it: of fewer, chance decides
_FEW = 2  # of what a thousand may have as seldom, chance decides in fewer than a thousand


class Explored(Counter[str]):
    """How often something was there or happened, by its name."""

    def too_little(self, histories: int) -> Iterator[str]:
        """A line for each thing of which these histories saw less than stated."""
        if histories < _ENOUGH:
            return
        for name, amount in AT_LEAST.items():
            if amount <= _FEW and histories < 1000:
                continue
            wanted = math.ceil(amount * histories / 1000)
            if self[name] < wanted:
                yield f"{name}: {self[name]} of at least {wanted}"

    def line(self, histories: int) -> str:
        """All of it in one line."""

        def of(group: str) -> dict[str, int]:
            return {name: n for name, n in self.items() if name.startswith(f"{group}: ")}

        excused = sum(of("refusals excused by a cause that was there").values())
        troubles, transitions, reasons = map(of, ("troubles", "transitions", "reasons"))
        return (
            f"{histories} histories: {self['moments by holders of a card: 4']} moments with four pods or "
            f"more on a card, {self['refusals: judged']} refusals judged and {excused} excused, "
            f"{self['quiet moments']} quiet moments compared, {sum(troubles.values())} troubles of "
            f"{len(troubles)} kinds, {sum(transitions.values())} switches of {len(transitions)} kinds, "
            f"{len(reasons)} reason words, {self['moments with a container whose pod is forgotten']} "
            f"moments with a container whose pod is forgotten"
        )

    def story(self) -> Iterator[str]:
        """One line a group, with the counts of its members; a name's group is before its colon."""
        groups: dict[str, list[str]] = {}
        for name in sorted(self):
            group, _, member = name.rpartition(": ")
            groups.setdefault(group, []).append(f"{member} {self[name]}")
        for group, members in groups.items():
            yield f"{group or 'in all'}: {', '.join(members)}"
