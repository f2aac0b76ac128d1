"""What may go wrong around the agent: API server, cards, disk, kubelet, the node itself.

Most of it lasts for some seconds and is over then; `Node.calm` ends it all.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from tests.histories.driver import SMALL_MIB, SimulatedCard
from tests.histories.node import MODE_LABEL, NODE_PATH, Node
from tests.histories.truth import offered_devices

from gpu_device_plugin.domain.node.memory_enforcer import MEMORY_ENFORCER_LABEL
from gpu_device_plugin.domain.node.modes import PLACEMENT_LABEL
from gpu_device_plugin.domain.nvidia.configuration import MigStrategy

_RESET_SECONDS = 6.0  # a card that is being reset does not answer, and a probe notices
_CARD_SECONDS = 45.0  # until a card that is well again counts as well
_LOST_SECONDS = _CARD_SECONDS + 75.0  # the same if NVML has to be opened again, ever more rarely

CONFIGURATIONS = {
    "whole": "version: v1\n",
    **{
        f"x{replicas}": "version: v1\nsharing:\n  timeSlicing:\n    resources:\n"
        f"    - {{name: nvidia.com/gpu, replicas: {replicas}}}\n"
        for replicas in (2, 4)
    },
    "bad": "version: v1\nsharing: [\n",
}
"""NVIDIA's file, by a name for it."""

# -- the API server


def api_away(node: Node, seconds: float) -> None:
    """It answers nothing."""

    def back() -> None:
        node.api.faults.is_away = False

    node.trouble("api away", seconds, node.api.go_away, back)


def api_slow(node: Node, seconds: float, latency: float) -> None:
    """Each answer takes long."""

    def set_to(value: float) -> None:
        node.api.faults.latency_seconds = value

    node.trouble("api slow", seconds, lambda: set_to(latency), lambda: set_to(0.0))


def api_throttles(node: Node, seconds: float, kinds: str) -> None:
    """It answers 429 to some kinds of requests."""

    def set_to(value: frozenset[str]) -> None:
        node.api.faults.throttled = value

    chosen = frozenset(kinds.split())
    node.trouble("api throttles", seconds, lambda: set_to(chosen), lambda: set_to(frozenset()))


def api_behind(node: Node, seconds: float, lag: float) -> None:
    """Watches tell everything late."""

    def set_to(value: float) -> None:
        node.api.faults.lag_seconds = value
        node.api.wake()

    node.trouble("api behind", seconds, lambda: set_to(lag), lambda: set_to(0.0))


def api_compacts(node: Node) -> None:
    """It forgets what changed: watches break, and go on with 410."""
    node.api.forget_changes()
    node.disturb(0.0)


# -- cards


def _card(node: Node, card: int) -> SimulatedCard:
    return node.driver.cards[card % len(node.driver.cards)]


def xid(node: Node, card: int, code: int) -> None:
    """The driver reports one; nothing else is wrong with the card. Of one that is cut it is the first instance's."""
    chosen = _card(node, card)
    named, *others = chosen.instance_uuids or ("",)
    if chosen.is_there and not chosen.error:
        if named and not node.is_disturbed():
            node.explored["XIDs of an instance"] += 1
            node.past.neighbours = {uuid for uuid in others if uuid in offered_devices(node)}
        node.driver.report(chosen.uuid, 94 if named else code, *filter(None, [named]))
        node.disturb(_CARD_SECONDS)


def card_asks_for_reset(node: Node, card: int, seconds: float) -> None:
    """A double-bit error: NVML asks for a reset until somebody resets it."""
    chosen = _card(node, card)

    def begin() -> None:
        chosen.action = 1
        node.driver.report(chosen.uuid, 48)

    def end() -> None:
        chosen.action = 0

    node.trouble(f"card {chosen.uuid[:12]} asks for a reset", seconds, begin, end)
    node.disturb(seconds + _CARD_SECONDS)


def card_lost(node: Node, card: int, seconds: float) -> None:
    """It falls off the bus, and comes back."""
    chosen = _card(node, card)

    def begin() -> None:
        chosen.error = "GPU_IS_LOST"
        node.driver.report(chosen.uuid, 79)

    def end() -> None:
        chosen.error = ""

    node.trouble(f"card {chosen.uuid[:12]} lost", seconds, begin, end)
    node.disturb(seconds + _LOST_SECONDS)


def card_unplugged(node: Node, card: int, seconds: float) -> None:
    """It is gone, and comes back at another place."""
    chosen = _card(node, card)

    def begin() -> None:
        chosen.is_there = False
        node.limits.lose()

    def end() -> None:
        node.driver.cards.remove(chosen)
        node.driver.cards.append(chosen)
        chosen.is_there = True

    node.trouble(f"card {chosen.uuid[:12]} unplugged", seconds, begin, end)
    node.disturb(seconds + _CARD_SECONDS)


def card_to_mig(node: Node, card: int, seconds: float) -> None:
    """Somebody switches it to MIG and back; each takes a reset of the card."""
    chosen = _card(node, card)

    def begin() -> None:
        chosen.error, chosen.is_mig = "GPU_IS_LOST", True
        asyncio.get_running_loop().call_later(_RESET_SECONDS, well)

    def end() -> None:
        chosen.error, chosen.is_mig = "GPU_IS_LOST", False
        asyncio.get_running_loop().call_later(_RESET_SECONDS, well)

    def well() -> None:
        chosen.error = ""

    if not chosen.error:
        node.trouble(f"card {chosen.uuid[:12]} in MIG mode", seconds + _RESET_SECONDS, begin, end)
    node.disturb(seconds + _RESET_SECONDS + _LOST_SECONDS)


def card_small(node: Node, card: int) -> None:
    """The node has such a card from its first start: it has less memory than a unit of 1 GiB."""
    _card(node, card).memory_mib = SMALL_MIB
    node.stop_agent()


def card_slow(node: Node, card: int, seconds: float, call: float) -> None:
    """Each call that needs it takes as long as the driver waits for a card's firmware."""
    chosen = _card(node, card)

    def set_to(value: float) -> None:
        chosen.call_seconds = value

    name = f"card {chosen.uuid[:12]} slow"
    node.trouble(name, seconds, lambda: set_to(call), lambda: set_to(0.0), is_for_all=False)


def card_cut(node: Node, card: int, instances: int) -> None:
    """Somebody in MIG mode cuts it into so many instances, or takes it out of MIG mode (0)."""
    chosen = _card(node, card)
    if not chosen.error and chosen.is_there:
        chosen.is_mig, chosen.instances = instances > 0, instances
        node.disturb(_LOST_SECONDS)


def driver_hangs(node: Node, seconds: float) -> None:
    """Every call into it blocks."""

    def set_to(*, value: bool) -> None:
        node.driver.is_hanging = value

    node.trouble("driver hangs", seconds, lambda: set_to(value=True), lambda: set_to(value=False))
    node.disturb(seconds + _CARD_SECONDS)


def driver_reloads(node: Node, seconds: float) -> None:
    """The module is taken out and loaded again; the cards have other places."""

    def begin() -> None:
        node.driver.is_loaded = False
        node.limits.lose()

    def end() -> None:
        node.driver.is_loaded = True
        node.driver.reset()
        node.driver.cards.reverse()

    node.trouble("driver reloads", seconds, begin, end)
    node.disturb(seconds + _CARD_SECONDS)


def driver_slow(node: Node, seconds: float, init: float) -> None:
    """Opening NVML takes long, as without the persistence daemon."""

    def set_to(value: float) -> None:
        node.driver.init_seconds = value

    node.trouble("driver slow", seconds, lambda: set_to(init), lambda: set_to(0.3))
    node.disturb(seconds + init + _CARD_SECONDS)


def limits_begin(node: Node) -> None:
    """The operator lets the driver limit memory."""
    node.limits.begin()


def limits_lost(node: Node) -> None:
    """Somebody takes every limit away."""
    node.limits.lose()


def cdi_off(node: Node, seconds: float) -> None:
    """The container runtime ignores CDI devices, without an error."""

    def set_to(*, value: bool) -> None:
        node.limits.is_cdi_off = value

    node.trouble("CDI off", seconds, lambda: set_to(value=True), lambda: set_to(value=False))


def hooks_fail(node: Node, times: int) -> None:
    """The next hooks fail, for instance because the container's cgroup is gone."""
    node.limits.failures += times


# -- the disk, and what lies on it


def disk_full(node: Node, seconds: float) -> None:
    """There is no room in the state directory."""

    def set_to(*, value: bool) -> None:
        node.machine.disk.is_full = value

    node.trouble("disk full", seconds, lambda: set_to(value=True), lambda: set_to(value=False))


def disk_slow(node: Node, seconds: float, flush: float) -> None:
    """A flush takes long."""

    def set_to(value: float) -> None:
        node.machine.disk.flush_seconds = value

    node.trouble("disk slow", seconds, lambda: set_to(flush), lambda: set_to(0.0))
    node.disturb(seconds + flush)  # one that has begun


def state_damaged(node: Node, kind: str, at: float) -> None:
    """The last write of one of the agent's files changes by a byte, and the agent is killed."""
    files = [path for path in node.file(kind).parent.glob(f"{kind}*") if ".bad" not in path.name]
    newest = max(map(_number, files), default=0)
    for path in files:
        if newest and _number(path) == newest:
            content = bytearray(path.read_bytes())
            content[int(at * (len(content) - 1))] ^= 0x55
            path.write_bytes(content)
            node.past.damaged_at = node.machine.loop.now
            node.past.was_damaged |= kind == "grants"
    node.kill_agent()


def _number(path: Path) -> int:
    """Number of the write that a file of the agent's holds, as its first line says; 0 for others."""
    words = path.read_bytes().partition(b"\n")[0].split()
    return int(words[5]) if len(words) == 7 and words[5].isdigit() else 0


def region_grown(node: Node, pod: int) -> None:
    """A container makes the files larger that it may write."""
    for life in node.pods.lives.values():
        if life.pod.name == f"p{pod}":
            paths = [path for files in life.mounted.values() for path in files]
            for path in filter(_is_shared, paths):
                os.truncate(path, 3 << 20)


def _is_shared(path: str) -> bool:
    return "/region" in path or ("/cards/" in path and Path(path).is_file())


# -- the kubelet, the node


def sockets_wiped(node: Node) -> None:
    """Somebody removes every plugin's socket; the kubelet goes on."""
    for path in node.kubelet.plugin_dir.glob("*.sock"):
        if path.name != "kubelet.sock":
            path.unlink()
    node.past.sockets_wiped_at = node.machine.loop.now
    node.disturb(5.0)


def registration_refused(node: Node, times: int) -> None:
    """The next registrations fail."""
    node.kubelet.faults.register_errors.extend(["not now"] * times)


def list_not_taken(node: Node, times: int) -> None:
    """After the next registrations the kubelet does not ask for the list."""
    node.kubelet.faults.unopened_lists += times
    node.disturb(30.0)


def later_rejection(node: Node, times: int) -> None:
    """A later step of the kubelet rejects the next pods, after Allocate."""
    node.kubelet.faults.rejections_after_allocate.extend(["TopologyAffinityError"] * times)


def reboot(node: Node, seconds: float) -> None:
    """The node loses power and boots again."""
    if node.pods.is_kubelet_up:
        node.pods.reboot()
        asyncio.get_running_loop().create_task(node.reboot(seconds))


def nvidia(node: Node) -> None:
    """The operator gives the agent a configuration file of NVIDIA's."""
    node.settings |= {
        "config_file": str(node.machine.root / "nvidia.yaml"),
        "mig_strategy": MigStrategy.MIXED,
    }
    configure(node, "whole")
    node.stop_agent()


def configure(node: Node, name: str) -> None:
    """The file changes, if there is one; a bad one leaves the one before in force."""
    if "config_file" not in node.settings:
        return
    path = node.machine.root / "nvidia.yaml"
    path.write_text(CONFIGURATIONS[name], "utf-8")
    node.machine.date(path)
    if name != "bad":
        node.past.configurations.append(name)


def clock_jumps(node: Node, seconds: float) -> None:
    """Somebody sets the wall clock."""
    node.machine.wall_ahead += seconds


def label(node: Node, mode: str) -> None:
    """Somebody labels the node; empty takes the label away."""
    labels = {MODE_LABEL: mode or None}
    node.past.modes |= {mode} & {"core_mem", "cgpu", "share", "disabled", "default"}
    node.api.patch(NODE_PATH, {"metadata": {"labels": labels}})
    node.pods.may_be_asked_again()
    node.disturb(0.0)


def placement(node: Node, policy: str) -> None:
    """Somebody chooses for the node how its cards are filled."""
    node.api.patch(NODE_PATH, {"metadata": {"labels": {PLACEMENT_LABEL: policy}}})


def enforcer(node: Node, name: str) -> None:
    """Somebody labels the node with an enforcer of memory; empty takes the label away."""
    node.api.patch(NODE_PATH, {"metadata": {"labels": {MEMORY_ENFORCER_LABEL: name or None}}})


def foreign_plugin(node: Node, seconds: float) -> None:
    """NVIDIA's plugin serves the same cards for a while."""

    def set_to(amount: str) -> None:
        node.api.patch(NODE_PATH, {"status": {"capacity": {"nvidia.com/gpu": amount}}})

    node.trouble("foreign plugin", seconds, lambda: set_to("2"), lambda: set_to("0"))


def failpoint(node: Node, point: str) -> None:
    """The agent is killed when it comes to this place in its code."""
    if node.agent is not None:
        node.machine.arm(point)


TROUBLES: tuple[Callable[..., None], ...] = (
    api_away,
    api_slow,
    api_throttles,
    api_behind,
    api_compacts,
    xid,
    card_asks_for_reset,
    card_lost,
    card_unplugged,
    card_to_mig,
    card_small,
    card_slow,
    card_cut,
    driver_hangs,
    driver_reloads,
    driver_slow,
    limits_begin,
    limits_lost,
    cdi_off,
    hooks_fail,
    disk_full,
    disk_slow,
    state_damaged,
    region_grown,
    sockets_wiped,
    registration_refused,
    list_not_taken,
    later_rejection,
    reboot,
    nvidia,
    configure,
    clock_jumps,
    label,
    placement,
    enforcer,
    foreign_plugin,
    failpoint,
)
