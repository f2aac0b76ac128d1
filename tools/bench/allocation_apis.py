"""How fast the control plane places pods by device plugin and by claims, and what each step of the recipe gains.

    tests/e2e/run.sh -- .venv/bin/python -m tools.bench.allocation_apis

That starts a real control plane without any kubelet, and prints what it saw as JSON.
"""

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.bench_node import DISK
from tools.bench.rejections import missing_programs
from tools.bench.rows import Chapter, Row, at_most, median, shown
from tools.harness.cluster.api import Api
from tools.harness.cluster.binaries import kubernetes_version
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.credentials import SCHEDULER
from tools.harness.cluster.helm import CLAIMS, NOBODY, Helm
from tools.harness.cluster.layout import Layout
from tools.harness.cluster.pods import CORE, COUNT, MEMORY, container, pod, slice_of
from tools.harness.cluster.processes import Program
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.claims import Capacity, OfferedDevice
from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL
from gpu_device_plugin.kubernetes.objects.resource_slices import slice_spec

NODES = PODS = 500
AT_ONCE = 200
CARDS = 4
CREATIONS = 200
MANY = 40
BAR_MS = 8
GOAL = 60
RAISED = 300
FIRST_FIT = "first-fit"
RAISED_LIMITS, RECIPE = "raised limits", "the recipe"
NO_NOMINATION, HINTS = "NominatedNodeNameForExpectation=false", "SchedulerPreQueueingHints=true"
"""Feature gates of kube-scheduler: one write a pod less; and an index for what an event wakes, since 1.37."""
BY_CLAIMS, BY_UNITS = "by-claims", "by-units"
_NAMES = {BY_CLAIMS: "claims", BY_UNITS: "device plugin"}
_RESOURCE = "/apis/resource.k8s.io/v1"
_STATE = Path("/run/gpu-device-plugin-bench")
_TITLE = "Placing by device plugin and by claims"
_METHOD = """\
How many pods of 2 units and 30 % a cluster of {nodes} nodes places in a second, by either [allocation API](dra.md). "Default limits" are
the requests a second that the components allow themselves (kube-controller-manager 20, kube-scheduler 50); raised ones are 300 for
both. "The recipe" is [the faster setting for claims](dra.md#more-pods-a-second).

A real control plane on this machine, without any kubelet: etcd, Kubernetes {version}, and the chart's policies. The {nodes} nodes have
{cards} V100 each, as allocatable and as ResourceSlices. {pods} pods are created over 8 connections; also {at_once} at once. Timed from
the first creation until no pod is without a node. One run of each.

Each further row keeps what the rows before it changed, except percentageOfNodesToScore. SchedulerPreQueueingHints is a gate of kube-scheduler 1.37 that is off by default.
The node lifecycle controller is off.

Processor time is that of each program from the first creation on, divided by the pods. What rewriting costs: {creations} creations each as dry runs (all of admission, no
write), in turn in a namespace with the label and in one without; the difference of the medians."""


@dataclass(frozen=True, slots=True)
class Placing:
    """How long all pods took, and the processor time per pod of each program (ms)."""

    namespace: str
    settings: str
    pods: int
    a_second: float
    cpu_ms: Mapping[str, float]


async def measure() -> Chapter:
    """Place on a real control plane, where one can be started; else say why not."""
    method = _METHOD.format(
        version=f"v{kubernetes_version()}",
        nodes=NODES,
        cards=CARDS,
        pods=PODS,
        at_once=AT_ONCE,
        creations=CREATIONS,
    )
    if missing := missing_programs():
        row = Row(f"{PODS} pods on {NODES} nodes", "told", f"not measured: {missing}")
        return Chapter(_TITLE, method, (row,))
    process = await asyncio.create_subprocess_exec(
        *("tests/e2e/run.sh", "--", sys.executable, "-m", "tools.bench.allocation_apis"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the control plane could not be measured"
    found = json.loads(output.splitlines()[-1])
    one, many = found["added_ms"]
    rows = (
        *_rows([Placing(**each) for each in found["placed"]]),
        at_most("rewriting adds to a creation, 1 container", one, BAR_MS, "ms"),
        shown(f"rewriting adds to a creation, {MANY} containers", f"{many:.1f} ms"),
    )
    return Chapter(_TITLE, method, rows)


def _rows(placings: Sequence[Placing]) -> Iterator[Row]:
    """The rate of each, and where the processor time goes by either API with the recipe's settings."""
    by_units = next(p for p in placings if (p.namespace, p.settings) == (BY_UNITS, RAISED_LIMITS))
    by_claims = next(p for p in placings if p.settings.startswith(RECIPE))
    for each in placings:
        what = f"{each.pods} pods placed, {_NAMES[each.namespace]}, {each.settings}"
        rate = f"{each.a_second:.0f} a second"
        if each.pods == AT_ONCE:
            yield shown(what, f"{each.pods / each.a_second:.1f} s")
        elif each is by_claims:
            goal = max(GOAL, by_units.a_second / 2)
            yield Row(what, f"≥ {goal:.0f} a second", rate, each.a_second >= goal)
        else:
            yield shown(what, rate)
    for program, units_ms in by_units.cpu_ms.items():
        both = f"{units_ms:.1f} and {by_claims.cpu_ms[program]:.1f} ms"
        yield shown(
            f"processor time per pod, {program}, device plugin and claims by the recipe", both
        )
    cores = os.cpu_count() or 1
    most = (cores * 1000 / sum(each.cpu_ms.values()) for each in (by_units, by_claims))
    what = f"as many a second as that time allows on {cores} cores, device plugin and claims"
    yield shown(what, " and ".join(f"{each:.0f}" for each in most))


def main() -> None:
    """Inside the namespaces of tests/e2e/run.sh."""
    logs = DISK.absolute() / "allocation-apis"
    shutil.rmtree(logs, ignore_errors=True)
    cluster = Cluster(Layout(_STATE, logs))
    cluster.prepare()
    plane = cluster.control_plane
    plane.controllers.command.append("--controllers=*,-node-lifecycle-controller")
    try:
        plane.start()
        found = _measured(cluster, Client(cluster))
    finally:
        plane.stop()
    sys.stdout.write(f"{json.dumps(found)}\n")


class Client:
    """Speaks to the API server as the admin, over one connection a thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._kubeconfig = cluster.admin_kubeconfig
        self._own = threading.local()

    def __call__(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Send one request; the object of its answer."""
        if not hasattr(self._own, "api"):
            self._own.api = Api(self._kubeconfig)
        status, answer = self._own.api.ask(method, path, content)
        assert status < 300, (method, path, status, str(answer)[:500])
        return answer

    def create(self, path: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create them over 8 connections."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda made: self("POST", path, made), objects))


def _measured(cluster: Cluster, api: Client) -> dict[str, Any]:
    for namespace in (BY_CLAIMS, BY_UNITS):
        cluster.kubectl("create", "namespace", namespace)
    _install(cluster)
    cluster.kubectl("label", "namespace", BY_CLAIMS, f"{ALLOCATION_API_LABEL}=dra")
    names = [f"node-{number:03}" for number in range(NODES)]
    api.create("/api/v1/nodes", [_node(name) for name in names])
    api.create(f"{_RESOURCE}/resourceslices", [_slice(name) for name in names])
    for namespace in (BY_CLAIMS, BY_UNITS):
        _until_accounts(cluster, namespace)
    wait_for("pods are rewritten", lambda: "asked" in json.dumps(_dry_run(api, BY_CLAIMS, 1)))
    # At the first use of a kind the API server learns its fields.
    for namespace in (BY_UNITS, BY_CLAIMS):
        _until_placed(api, namespace, [_pod("first", 1)])
    added = [_added_ms(api, count) for count in (1, MANY)]
    return {"placed": [asdict(each) for each in Steps(cluster, api).run()], "added_ms": added}


class Steps:
    """What is changed from row to row."""

    def __init__(self, cluster: Cluster, api: Client) -> None:
        self._cluster = cluster
        self._api = api
        plane = cluster.control_plane
        self._programs = (plane.server, plane.scheduler, plane.controllers, plane.store)
        self._config = cluster.layout.state / "scheduler.json"

    def run(self) -> Iterator[Placing]:
        """Every row's figures, in turn."""
        plane = self._cluster.control_plane
        controllers, scheduler = plane.controllers, plane.scheduler
        yield from self._both("default limits")
        _restart(controllers, f"--kube-api-qps={RAISED}", f"--kube-api-burst={RAISED}")
        _restart(scheduler, f"--config={self._configured()}")
        yield from self._both(RAISED_LIMITS)
        _restart(scheduler, f"--config={self._configured(5)}")
        yield self._placing(BY_CLAIMS, "percentageOfNodesToScore 5")
        _restart(scheduler, f"--config={self._configured()}")
        _install(self._cluster, f"dra.schedulerName={FIRST_FIT}")
        self._until_created(lambda created: FIRST_FIT in created)
        yield self._placing(BY_CLAIMS, "a profile that scores no node")
        _restart(scheduler, f"--feature-gates={NO_NOMINATION}")
        for count in (PODS, AT_ONCE):
            recipe = f"{RECIPE}: all but the percentage, {NO_NOMINATION}"
            yield self._placing(BY_CLAIMS, recipe, count)
        if int(kubernetes_version().split(".")[1]) >= 37:
            _restart(scheduler, f"--feature-gates={NO_NOMINATION},{HINTS}")
            yield self._placing(BY_CLAIMS, HINTS)

    def _both(self, settings: str) -> Iterator[Placing]:
        for count in (PODS, AT_ONCE):
            for namespace in (BY_UNITS, BY_CLAIMS):
                yield self._placing(namespace, settings, count)

    def _until_created(self, holds: Callable[[str], bool]) -> None:
        """Wait until a new pod is as the policies of now make it."""
        wait_for("policies", lambda: holds(json.dumps(_dry_run(self._api, BY_CLAIMS, 1))))

    def _placing(self, namespace: str, settings: str, count: int = PODS) -> Placing:
        for each in (BY_UNITS, BY_CLAIMS):
            _empty(self._api, each)
        before, began = [_cpu_ms(each) for each in self._programs], time.perf_counter()
        pods = [_pod(f"p{number}", 1) for number in range(count)]
        _until_placed(self._api, namespace, pods)
        seconds = time.perf_counter() - began
        spent = {
            program.name: (_cpu_ms(program) - ms) / count
            for program, ms in zip(self._programs, before, strict=True)
        }
        sys.stderr.write(
            f"{count} {namespace}, {settings}: {count / seconds:.1f} a second, {spent}\n"
        )
        return Placing(namespace, settings, count, count / seconds, spent)

    def _configured(self, percentage: int = 0) -> Path:
        """Raised limits, and beside the default profile one that scores no node: the first that fits is taken."""
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self._cluster.credentials.kubeconfig(SCHEDULER)),
                "qps": RAISED,
                "burst": RAISED,
            },
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": percentage,
            "profiles": [
                {"schedulerName": "default-scheduler"},
                {
                    "schedulerName": FIRST_FIT,
                    "plugins": {
                        "preScore": {"disabled": [{"name": "*"}]},
                        "score": {"disabled": [{"name": "*"}]},
                    },
                },
            ],
        }
        self._config.write_text(json.dumps(content))
        return self._config


def _restart(program: Program, *flags: str) -> None:
    program.stop()
    program.command += flags
    program.start()


def _cpu_ms(program: Program) -> float:
    """Processor time of a program so far: fields 14 and 15 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _install(cluster: Cluster, *more: str) -> None:
    Helm(cluster).install(NOBODY, CLAIMS[0], f"dra.namespaces={{{BY_CLAIMS}}}", *more)


def _until_accounts(cluster: Cluster, namespace: str) -> None:
    """Without it no pod can be created."""
    wait_for("its account exists", lambda: cluster.find("serviceaccount", "default", namespace))


def _until_placed(api: Client, namespace: str, pods: Sequence[Mapping[str, Any]]) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.create(path, pods)
    waiting = f"{path}?fieldSelector=spec.nodeName%3D&limit=1"
    wait_for("every pod has a node", lambda: not api("GET", waiting)["items"], 600, 0.2)


def _empty(api: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    claims = f"{_RESOURCE}/namespaces/{namespace}/resourceclaims"
    api("DELETE", path, {"gracePeriodSeconds": 0})

    def is_empty() -> bool:
        return not any(api("GET", f"{each}?limit=1")["items"] for each in (path, claims))

    wait_for("nothing is left", is_empty, 600, 0.5)


def _added_ms(api: Client, containers: int) -> float:
    """What a creation takes longer where pods are rewritten."""
    seconds: dict[str, list[float]] = {BY_CLAIMS: [], BY_UNITS: []}
    for _ in range(CREATIONS):
        for namespace, found in seconds.items():
            began = time.perf_counter()
            _dry_run(api, namespace, containers)
            found.append(time.perf_counter() - began)
    return 1000 * (median(seconds[BY_CLAIMS]) - median(seconds[BY_UNITS]))


def _dry_run(api: Client, namespace: str, containers: int) -> Any:
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    return api("POST", path, _pod("tried", containers))


def _pod(name: str, containers: int) -> dict[str, Any]:
    # Nodes without a kubelet keep the taint that every new node has.
    tolerations = [{"operator": "Exists"}]
    made = (container(f"c{n}", resources=slice_of(2, 30)) for n in range(containers))
    return pod(name, *made, tolerations=tolerations)


def _node(name: str) -> dict[str, Any]:
    offered = {MEMORY: 15 * CARDS, CORE: 100 * CARDS, COUNT: CARDS, "cpu": 64, "pods": 110}
    amounts = {key: str(value) for key, value in offered.items()} | {"memory": "256Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def _slice(name: str) -> dict[str, Any]:
    """As the agent writes it for a node in mode core_mem."""
    capacity = Capacity(MiB(15 * 1024), MiB(1024), 100, 5)
    offered = [
        OfferedDevice(
            Card(f"GPU-{name}-{n}", CardNumber(n), CardIndex(n), n, "V100", MiB(16160)),
            "core_mem",
            capacity,
        )
        for n in range(CARDS)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-gpu-device-plugin"},
        "spec": slice_spec(name, offered, "580.65"),
    }


if __name__ == "__main__":
    main()
