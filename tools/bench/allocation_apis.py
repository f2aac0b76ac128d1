"""How fast the control plane places pods by each allocation API, and what rewriting a pod costs at its creation.

    tests/e2e/run.sh -- .venv/bin/python -m tools.bench.allocation_apis

That starts a real control plane without any kubelet, and prints what it saw as JSON.
"""

import asyncio
import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.bench.bench_node import DISK
from tools.bench.rejections import missing_programs
from tools.bench.rows import Chapter, Row, at_most, median, shown
from tools.harness.cluster.api import Api
from tools.harness.cluster.binaries import kubernetes_version
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import CLAIMS, NOBODY, Helm
from tools.harness.cluster.layout import Layout
from tools.harness.cluster.pods import CORE, COUNT, MEMORY, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.grants.claims import Capacity, OfferedDevice
from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL
from gpu_device_plugin.kubernetes.objects.resource_slices import slice_spec

NODES = PODS = 500
CARDS = 4
CREATIONS = 200
MANY = 40
BAR_MS = 8
RAISED = 300
BY_CLAIMS, BY_UNITS = "by-claims", "by-units"
_APIS = {BY_CLAIMS: "claims", BY_UNITS: "device plugin"}
_STATE = Path("/run/gpu-device-plugin-bench")
_TITLE = "Placing by each allocation API"
_METHOD = """\
A real control plane on this machine (etcd, kube-apiserver, kube-controller-manager, kube-scheduler {version}, the chart's
policies), without any kubelet: {nodes} nodes of {cards} V100, as allocatable and as ResourceSlices, and {pods} pods of 2 units and 30 %,
created over 8 connections. Timed from the first creation until no pod is without a node; one run, the APIs in turn. Default limits are those
of the components' clients (kube-controller-manager 20 requests a second, kube-scheduler 50); raised ones are
`--kube-api-qps={raised}` for both. The node lifecycle controller is off, which would call nodes without a kubelet lost.
What rewriting costs: {creations} creations each as dry runs (all of admission, no write), in turn in a namespace with the label and in one
without; the difference of the medians."""


async def measure() -> Chapter:
    """Place on a real control plane, where one can be started; else say why not."""
    method = _METHOD.format(
        version=f"v{kubernetes_version()}", nodes=NODES, cards=CARDS, pods=PODS, raised=RAISED,
        creations=CREATIONS,
    )  # fmt: skip
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
    rows = [
        shown(
            f"{PODS} pods placed, {limits} limits, {_APIS[api_name]}",
            f"{PODS / seconds:.0f} a second",
        )
        for (limits, api_name, seconds) in found["placed"]
    ]
    one, many = found["added_ms"]
    rows += [
        at_most("rewriting adds to a creation, 1 container", one, BAR_MS, "ms"),
        shown(f"rewriting adds to a creation, {MANY} containers", f"{many:.1f} ms"),
    ]
    return Chapter(_TITLE, method, tuple(rows))


def main() -> None:
    """Inside the namespaces of tests/e2e/run.sh."""
    logs = DISK.absolute() / "allocation_apis"
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
    Helm(cluster).install(NOBODY, CLAIMS[0], f"dra.namespaces={{{BY_CLAIMS}}}")
    cluster.kubectl("label", "namespace", BY_CLAIMS, f"{ALLOCATION_API_LABEL}=dra")
    names = [f"node-{number:03}" for number in range(NODES)]
    api.create("/api/v1/nodes", [_node(name) for name in names])
    api.create("/apis/resource.k8s.io/v1/resourceslices", [_slice(name) for name in names])
    for namespace in (BY_CLAIMS, BY_UNITS):
        _until_accounts(cluster, namespace)
    wait_for("pods are rewritten", lambda: "asked" in json.dumps(_dry_run(api, BY_CLAIMS, 1)))
    added = [_added_ms(api, count) for count in (1, MANY)]
    placed = [["default", api_name, _placed(api, api_name)] for api_name in (BY_UNITS, BY_CLAIMS)]
    for program in (cluster.control_plane.controllers, cluster.control_plane.scheduler):
        program.stop()
        program.command += [f"--kube-api-qps={RAISED}", f"--kube-api-burst={RAISED}"]
        program.start()
    for api_name in (BY_UNITS, BY_CLAIMS):
        _empty(api, api_name)
    placed += [["raised", api_name, _placed(api, api_name)] for api_name in (BY_UNITS, BY_CLAIMS)]
    return {"placed": placed, "added_ms": added}


def _until_accounts(cluster: Cluster, namespace: str) -> None:
    """Without it no pod can be created."""
    wait_for("its account exists", lambda: cluster.find("serviceaccount", "default", namespace))


def _placed(api: Client, namespace: str) -> float:
    """Seconds until all pods have a node."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    began = time.perf_counter()
    api.create(path, [_pod(f"p{number}", 1) for number in range(PODS)])
    waiting = f"{path}?fieldSelector=spec.nodeName%3D&limit=1"
    wait_for("every pod has a node", lambda: not api("GET", waiting)["items"], 600, 0.2)
    return time.perf_counter() - began


def _empty(api: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api("DELETE", path, {"gracePeriodSeconds": 0})
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims?limit=1"

    def is_empty() -> bool:
        return not any(api("GET", each)["items"] for each in (path, claims))

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
    holding = (container(f"c{n}", resources=slice_of(2, 30)) for n in range(containers))
    return pod(name, *holding, tolerations=tolerations)


def _node(name: str) -> dict[str, Any]:
    offered = {MEMORY: 15 * CARDS, CORE: 100 * CARDS, COUNT: CARDS, "cpu": 64, "pods": 110}
    amounts = {key: str(value) for key, value in offered.items()} | {"memory": "256Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def _slice(name: str) -> dict[str, Any]:
    """As the agent writes it for a node in mode core_mem."""
    capacity = Capacity(15 * 1024, 1024, 100, 5)
    offered = [
        OfferedDevice(
            Card(f"GPU-{name}-{n}", CardNumber(n), CardIndex(n), n, "V100", 16160),
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
