"""Nothing that a tenant or a stuck neighbour does decides about the kubelet's call for another pod."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from tests.agent.test_both_kinds import WHOLE_CARD, switching
from tests.agent.test_requests import allocate
from tests.agent.test_slow_disk import stuck
from tests.held import fraction
from tests.hostile.work import lines_run
from tools.harness.rig import MEM, Rig, command, running_rig, slice_of, until

from gpu_device_plugin.agent.card_watch.configuration_follower import ConfigurationFollower, InForce
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.disk.grant_file import KIND
from gpu_device_plugin.domain.fractions.units import unit_ids
from gpu_device_plugin.domain.grants.caller import Call, find_allocating_caller
from gpu_device_plugin.domain.grants.decision_log import Decision, DecisionLog
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
    known_here,
)
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import ConfigError, RequestError
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request
from gpu_device_plugin.settings.agent_settings import load_settings
from gpu_device_plugin.settings.bounded_yaml import parse_yaml
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics

MIRROR = "kubernetes.io/config.mirror"
REPLICAS = """
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 7}]}}
"""


async def put(rig: Rig, name: str, **annotations: str) -> None:
    """A pod that asks for two units, at the API server alone."""
    seen = Rig.object_of(rig.pod(name, slice_of(2, 30)))
    seen["metadata"]["annotations"] = {key.replace("__", "/"): v for key, v in annotations.items()}
    await rig.api.put(f"/api/v1/namespaces/default/pods/{name}", seen)


async def allocated(rig: Rig, seconds: float = 20) -> Any:
    """Allocate without GetPreferredAllocation, as soon as the agent's watch has the last pod.

    Raises:
        TimeoutError: No answer within so many seconds: the call is cut off.
        grpc.aio.AioRpcError: It is refused, and not for want of the pod.
    """
    while True:
        try:
            async with asyncio.timeout(seconds):
                return await allocate(rig, unit_ids(MEM, 1, 2))
        except grpc.aio.AioRpcError as error:
            if "no pod of this node is known to wait" not in str(error.details()):
                raise


@pytest.mark.parametrize("forged", [1, 40])
async def test_forged_mirror_pods_do_not_hide_who_asks(forged: int) -> None:
    """The kubelet lists none of them, so none can be the one; they were refused together."""
    async with running_rig() as rig:
        for number in range(forged):
            await put(rig, f"forged-{number}", **{MIRROR: f"hash-{number}"})
        await put(rig, "victim")

        await allocated(rig)

        assert [grant.pod.name for grant in rig.grants()] == ["victim"]


def test_a_forged_mirror_has_no_uid_of_another_pod() -> None:
    """Neither in the controller, nor in the agent, not even under a name that the kubelet lists."""
    forged = {"name": "f", "namespace": "x", "uid": "own", "annotations": {MIRROR: "victims"}}
    assert pod_request(msgspec.convert({"metadata": forged}, Pod)).ref.uid == "own"

    victim = PodRequest(PodRef("ns", "v", "victims"), ())
    mirror = PodRequest(PodRef("x", "f", "victims"), (), is_mirror=True)
    both = {each.ref.key: each for each in (victim, mirror)}
    for listed in ((), [mirror.ref.key, victim.ref.key]):
        known = known_here(both, listed)
        assert [spec.ref.uid for spec in known.values()] == ["victims", ""]


def test_a_mirror_that_the_kubelet_lists_counts() -> None:
    """It is known by the uid that the kubelet has for it."""
    mirror = PodRequest(PodRef("kube-system", "static", "hash"), (), is_mirror=True)

    assert known_here({mirror.ref.key: mirror}, [mirror.ref.key]) == {mirror.ref.key: mirror}


async def test_a_call_that_is_cut_off_leaves_no_decision_and_is_told() -> None:
    """The kubelet rejects its pod, and gives the same units to the next one without asking."""
    async with running_rig() as rig:
        assert (await rig.admit("before", slice_of(2, 30))).is_admitted
        pair = (rig.state / KIND, rig.state / f"{KIND}.other")
        older = min(pair, key=lambda path: path.stat().st_mtime_ns)
        await put(rig, "cut")
        async with stuck(older) as free:

            async def is_told() -> (
                bool
            ):  # on a busy machine a call may be cut off before it is decided
                with pytest.raises(TimeoutError):
                    await allocated(rig, 1.5)
                return bool(rig.events("CallCutOff"))

            await until(is_told, 20)
            await rig.api.delete("/api/v1/namespaces/default/pods/cut")
            assert rig.events("CallCutOff")[0]["involvedObject"]["name"] == "cut"
            assert "CallCutOff" in (await command(rig, "why", "default/cut"))[1]
            await rig.until_metric(
                f'allocations_total{{outcome="refused",reason="CallCutOff",resource="{MEM}"}}', ".0"
            )
            free()
        await put(rig, "next")

        await allocated(rig)

        assert {grant.pod.name for grant in rig.grants()} == {"before", "next"}


async def test_all_recorded_holders_of_a_card_are_asked_for_at_once(short_dir: Path) -> None:
    """Each Get may take two seconds, and the call as a whole has four: one Get a pod, together."""
    asked, together, holders = list[PodRef](), asyncio.Event(), 20

    async def get(pod: PodRef) -> ListedPod | None:
        asked.append(pod)
        if len(asked) == holders:
            together.set()
        await together.wait()
        return None

    async with switching(short_dir, get_pod=get) as (wiring, give_to):
        for number in range(holders):
            for container in ("a", "b"):
                pod = PodRef("default", f"p{number}", f"u{number}")
                name = f"{container}{number}"
                held = fraction(name, pod, container, units={MEM: (name,)}, cards=("GPU-0",))
                await wiring.ledger_store.hold(held)
        give_to("whole")
        async with asyncio.timeout(20):
            await wiring.device_calls.allocate(WHOLE_CARD, ["GPU-0"])

    assert len(asked) == len(set(asked)) == holders


async def test_what_is_no_warning_is_logged_as_none(tmp_path: Path) -> None:
    """A log that cries at every change hides what is wrong (R-708)."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    async with running_rig(config_file=str(file), log_format="json") as rig:
        file.write_text(REPLICAS)
        os.utime(file, (0, 0))  # not as young as one that is being written
        assert rig.process is not None
        rig.process.send_signal(signal.SIGHUP)
        await until(lambda: bool(rig.events("ConfigurationChanged")), 20)
        lines = [json.loads(line) for line in rig.log.read_text().splitlines()]

    told = [line["level"] for line in lines if line.get("reason") == "ConfigurationChanged"]
    assert told == ["info"]


async def test_an_error_while_the_configuration_is_read_is_not_lost(tmp_path: Path) -> None:
    """Anyone who follows it gets it; the agent ends by it and is started again."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    settings = load_settings({"node_name": "n1", "config_file": str(file)}, {}, None)
    store = NodeStore(first_state(settings))
    recorder = EventRecorder(AgentMetrics(""), lambda _: None, store, lambda: 0.0, Schemes())

    def fail(_: None) -> None:
        raise ZeroDivisionError

    in_force = InForce(nvidia_configuration(settings))
    follower = ConfigurationFollower(settings, store, dict, tuple, recorder, in_force, lambda: None)
    follower.changed.subscribe(fail)
    file.write_text(REPLICAS)
    os.utime(file, (0, 0))  # not as young as one that is being written
    follower.run()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(follower.follow(), 20)


def bomb(levels: int) -> str:
    """YAML of which each line stands for nine times what the one before does."""
    return "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)
    )


def merged(levels: int) -> str:
    """The same by merged keys."""
    return "a0: &a0 {x: 1}\n" + "\n".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}"
        for level in range(1, levels)
    )


def values(plain: object) -> int:
    """How many values somebody sees who goes through all of it."""
    if isinstance(plain, dict):
        return 1 + sum(1 + values(each) for each in plain.values())
    return 1 + sum(map(values, plain)) if isinstance(plain, list) else 1


@pytest.mark.parametrize("kind", [bomb, merged])
def test_aliases_stand_for_no_more_than_a_large_file_has(kind: Callable[[int], str]) -> None:
    """By counting: what is taken is small, and what is refused grows with no depth."""
    taken = [values(parse_yaml(kind(levels))) for levels in (1, 2, 3)]
    assert max(taken) <= 10_000
    for levels in (5, 7, 40):
        with pytest.raises(ConfigError, match="more than 10000 values"):
            parse_yaml(kind(levels))


def test_a_file_has_at_most_ten_thousand_values() -> None:
    """Written out or by aliases; a configuration has dozens."""
    assert len(parse_yaml(f"[{'1, ' * 9_990}]")) == 9_990
    with pytest.raises(ConfigError, match="more than 10000 values"):
        parse_yaml(f"[{'1, ' * 10_000}]")


@pytest.mark.parametrize("number", [":".join("1" * 40), ":".join("1" * 400) + ".0", "1" * 65])
def test_a_number_has_at_most_64_characters(number: str) -> None:
    """One to the base of 60 costs the square of its length: 200 KB took 7 s, or did not fit."""
    with pytest.raises(ConfigError, match="a number of"):
        parse_yaml(f"key: {number}")
    assert parse_yaml(f"key: {'1' * 64}") == {"key": int("1" * 64)}


def test_who_asks_is_found_in_work_that_grows_with_the_containers_and_no_faster() -> None:
    """A tenant's pods may have thousands on a node of small units; each call looks at all of them."""
    costs = []
    for pods, containers in ((10, 10), (10, 20), (10, 40), (40, 10)):
        names = [f"c{number}" for number in range(containers)]
        parts = [ContainerRequest(n, ContainerKind.APP, i, {MEM: 1}) for i, n in enumerate(names)]
        refs = [PodRef("evil", f"p{number}", f"u{number}") for number in range(pods)]
        specs = {ref.key: PodRequest(ref, tuple(parts)) for ref in refs}
        held = [
            fraction(f"{ref.name}-{n}", ref, n, units={MEM: (f"{ref.name}{n}",)})
            for ref in refs
            for n in names
        ]
        asking = PodRequest(PodRef("ns", "victim", "v"), (parts[0],))
        ledger, call = Ledger({g.slice_id: g for g in held}), Call(MEM, 1, frozenset({"m00"}))
        known = {**specs, asking.ref.key: asking}
        costs.append(lines_run(partial(find_allocating_caller, call, known, ledger)))

    once, twice, four, wide = costs
    assert twice < 2.3 * once
    assert four < 4.6 * once
    assert wide < 4.6 * once


def test_why_fits_into_its_answer_however_often_a_pod_was_refused() -> None:
    """One name may be created and refused for as long as its owner wishes."""
    lengths = []
    for refusals in (200, 1000):
        log = DecisionLog(1000)
        for number in range(refusals):
            outcome, rooms = "x" * 1000, ("card 0 no room",) * 16
            log.add(Decision("ns/again", "main", "2 units", rooms, outcome, "NoRoom", number))
        lengths.append(len(log.why("ns/again")))

    assert lengths[0] == lengths[1] < 1 << 19


def test_the_name_of_a_runtime_class_is_bounded_and_never_a_pattern() -> None:
    """The operator's list alone has patterns; what a refusal repeats of the name is short."""
    state = NodeState("n1", NodeMode.CORE_MEM, sandboxes=("kata*",))
    for name, is_sandbox in (
        ("kata" + "*" * 2**20, True),
        ("*", False),
        ("k?ta", False),
        ("", False),
    ):
        spec = {"containers": [], "runtimeClassName": name}
        plain = {"metadata": {"namespace": "a", "name": "p"}, "spec": spec}
        request = pod_request(msgspec.convert(plain, Pod))
        if not is_sandbox:
            state.check_runtime(request)
            continue
        with pytest.raises(RequestError) as refused:
            state.check_runtime(request)
        assert len(str(refused.value)) < 600
