"""On a node of driver 615 NVIDIA's driver holds a slice's memory, with the preload switched off too.

NVIDIA's own hook runs beside ours in every container. This machine has a hybrid tree of cgroups, so both
hooks, the limit keeper and the agent see the unified one at /sys/fs/cgroup, in a mount namespace of theirs.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.claims import claims_installed, devices, set_allocation_api
from tests.e2e.conftest import STATE, at_work
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.tenants import (
    MIB,
    OUT_OF_MEMORY,
    SERVE,
    SLICE_MIB,
    Tenant,
    cuda_images,
    start_tenant,
    tenant_pod,
)
from tests.e2e.test_resize import EIGHT_UNITS, answer, wait_for_units
from tests.isolation.test_limit_hook import cgroup_tree
from tests.told import compile_program
from tools.harness.cluster.agent import PROGRAM, Agent, AgentDirectories
from tools.harness.cluster.binaries import cdi_hook_path
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import slice_of
from tools.harness.cluster.processes import Program
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.fractions.pod_annotations import RESIZE
from gpu_device_plugin.domain.fractions.resize import sizes_of
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer
from gpu_device_plugin.simulation.driver_library import set_fields
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode, cdi_spec

pytestmark = pytest.mark.skipif(
    not cdi_hook_path().exists(),
    reason="nvidia-cdi-hook not built on this machine: run tests/e2e/install.sh",
)
DRIVER = "615.71.09"
TREE = "/sys/fs/cgroup"
WHOLE = f"alloc 0 {SLICE_MIB * MIB}"
FITS = f"alloc 0 {1024 * MIB}"


def inside(*before: str) -> list[str]:
    """A command that runs what follows where the tree of cgroup v2 is at its usual place."""
    bind = f"[ ! -d {TREE}/unified ] || mount --bind {TREE}/unified {TREE}"
    script = " && ".join((bind, *before, 'exec "$@"'))
    return ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", f"{script}", "sh"]


def wrapper(path: Path, *command: str, before: tuple[str, ...] = ()) -> Path:
    """A program that runs the command there, with its own arguments."""
    words = " ".join(f"'{word}'" for word in (*inside(*before), *command))
    path.write_text(
        f'#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\nexec {words} "$@"\n'
    )
    path.chmod(0o755)
    return path


@dataclass(frozen=True, slots=True)
class Limited:
    """The agent of that node and its limit keeper."""

    agent: Agent
    keeper: Program

    def grant(self, name: str) -> Grant:
        """What the pod's only container holds."""
        (grant,) = (each for each in self.agent.grants() if each.pod.name == name)
        return grant

    def mark(self, name: str, file: str = "driver-limit") -> str:
        """What the hook left for the pod's slice."""
        path = self.agent.directories.run / "slices" / self.grant(name).slice_id / file
        return path.read_text() if path.is_file() else ""


def nvidias_devices(node: SimulatedNode, place: Path) -> dict[str, Any]:
    """The cards as NVIDIA's tools of 1.20.1 describe them: each with its hook for memory limits."""
    root, libraries = place / "driver", node.library.parent
    (root / "usr/lib64").mkdir(parents=True)
    mount = f"mount --bind {libraries} {root}/usr/lib64"
    hook = wrapper(place / "nvidia-hook", str(cdi_hook_path()), before=(mount,))
    spec: dict[str, Any] = cdi_spec(node)
    for device in spec["devices"]:
        words = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", str(root)]
        args = [*words, "--gpu-id", device["name"]]
        made = {"hookName": "createRuntime", "path": str(hook), "args": args}
        device["containerEdits"]["hooks"] = [] if device["name"] == "all" else [made]
    return spec


def native_with_wrapped_hook(place: Path) -> Path:
    """Our libraries and programs, as the agent installs them."""
    native = place / "native"
    native.mkdir()
    for path in native_library("libgpuslice.so").parent.iterdir():
        (native / path.name).symlink_to(path)
    (native / "gpu-limit-hook").unlink()
    wrapper(native / "gpu-limit-hook", str(native_library("gpu-limit-hook")))
    return native


def load_image(cluster: Cluster, cards: Path, place: Path) -> None:
    """The tenants'."""
    libraries = [*cards.glob("*.so.1"), native_library("libgpuslice.so")]
    for image in cuda_images(compile_program(place), libraries):
        cluster.node.load(image)


@pytest.fixture(scope="module")
def limited_node(
    cluster: Cluster, serving_agent: Agent, results: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Limited]:
    """In the usual agent's place one whose slices the driver limits."""
    serving_agent.stop()
    place = tmp_path_factory.mktemp("hooks")
    native = native_with_wrapped_hook(place)
    directories = AgentDirectories(STATE / "limited", results / "limited")
    cards = directories.simulated_node
    flags = {
        "device-list-strategy": "cdi-cri",
        "memory-enforcer": "driver",
        "cdi-dir": str(cluster.node.cdi_directory),
    }
    environment = {"GPU_DEVICE_PLUGIN_NATIVE": str(native), "NVIDIA_DRIVER_ROOT": str(cards)}
    agent = Agent(cluster, directories, flags, environment)
    agent.program.command = [*inside(), *agent.program.command]
    agent.prepare("--driver-version", DRIVER)
    spec = nvidias_devices(SimulatedNode(cards / STATE_NAME), place)
    cluster.node.add_cdi_spec("nvidia", json.dumps(spec))
    load_image(cluster, cards, place)
    command = [*inside(), str(PROGRAM), "limit-keeper"]
    command += [f"--run-dir={directories.run}", f"--driver-root={cards}"]
    keeper = Program(
        "keeper", command, results / "limited" / "keeper.log", serving_agent.environment
    )
    keeper.start()
    try:
        agent.start()
        yield Limited(agent, keeper)
    finally:
        agent.stop()
        keeper.stop()


@pytest.fixture
def limited(cluster: Cluster, limited_node: Limited) -> Iterator[Limited]:
    """That node, empty; whatever a test leaves is removed."""
    for _ in at_work(cluster, limited_node.agent):
        yield limited_node
        if not limited_node.keeper.running():
            limited_node.keeper.start()


def start(cluster: Cluster, name: str, **spec: Any) -> Tenant:
    """A tenant whose container begins again when it ends."""
    made = tenant_pod(name, slice_of(2, 30), pod_restartPolicy="Always", **spec)
    return start_tenant(cluster, made)


def check_held(tenant: Tenant) -> None:
    """Without the library the driver refuses what the slice does not have, and tells the slice."""
    answers = tenant.once_without_preload("init", "retain", "info", WHOLE, FITS)

    assert answers[:2] == [[0], [0]]
    assert answers[2][2] == SLICE_MIB * MIB
    assert answers[3:] == [[OUT_OF_MEMORY], [0]]


def test_a_slice_is_held_by_the_driver_also_after_a_restart_and_whatever_the_pod_sets(
    cluster: Cluster, limited: Limited
) -> None:
    """NVIDIA's hook runs first and alone would lift the limit by the pod's own variable."""
    env = [{"name": "NVIDIA_GPU_MEMORY_REQUEST", "value": "100"}]
    tenant = start(cluster, "held", env=env)
    before = limited.mark("held")

    assert {grant.memory_enforcer for grant in limited.agent.grants()} == {MemoryEnforcer.DRIVER}
    assert "by=repair" not in before
    check_held(tenant)
    tenant.run("sh", "-c", "kill 1")
    wait_for("its next container has a limit", lambda: limited.mark("held") not in ("", before), 90)
    wait_for("it listens", lambda: "out" in tenant.run("ls", "/told").split(), 60)
    check_held(tenant)


def test_a_container_whose_hook_fails_does_not_start(cluster: Cluster, limited: Limited) -> None:
    """It is tried again by the kubelet, and starts when the hook can do its work."""
    set_accounting(limited, 2)
    cluster.apply(tenant_pod("waiting", slice_of(2, 30), pod_restartPolicy="Always"))
    wait_for("the kubelet tells why", lambda: "Not Supported" in told(cluster, "waiting"), 60)
    assert limited.mark("waiting") == ""
    set_accounting(limited, 0)
    # The phase is Running all along: the kubelet counts a container that it tries again as started.
    begun = f"cgroup={TREE}/"
    wait_for("its limit is set", lambda: limited.mark("waiting").startswith(begun), 90)


def test_what_a_reload_of_the_driver_took_is_set_again(cluster: Cluster, limited: Limited) -> None:
    """By the limit keeper, for a container that runs."""
    tenant = start(cluster, "kept")
    mark = limited.mark("kept")
    limited.agent.simulate("driver-upgrade", DRIVER)

    def is_held() -> bool:
        return tenant.once_without_preload("init", "retain", WHOLE)[2] == [OUT_OF_MEMORY]

    wait_for("the limit is set again", is_held, 60, 1)
    assert limited.mark("kept") == mark


def test_a_claim_is_held_by_the_driver_as_well(cluster: Cluster, limited: Limited) -> None:
    """Its CDI names have the slice's device, which carries the hook."""
    try:
        with claims_installed(cluster):
            set_allocation_api(cluster, "dra")
            wait_for("four cards are offered", lambda: len(devices(cluster)) == 4, 60)
            tenant = start(cluster, "claimed")
            assert limited.grant("claimed").holder.claim
            check_held(tenant)
            cluster.kubectl("annotate", "pod", "claimed", f"{RESIZE}=main=mem:4")
            wait_for("it keeps its size", lambda: "claims, whole" in answer(cluster, "claimed"))
            cluster.kubectl("delete", "pod", "claimed", "--wait=true", "--grace-period=1")
            wait_for("no claim is left", lambda: not cluster.every("resourceclaim"), 60)
    finally:
        cluster.kubectl("label", "node", NODE, "gpu-device-plugin/allocation-api-")


def static(cluster: Cluster, name: str) -> Tenant:
    """A tenant whose program has no library preloaded, as a static one."""
    script = SERVE.replace("client <", "without-preload /bin/client <")
    tenant = start(cluster, name, script=script)
    tenant.open()
    return tenant


def drivers_limit_mib(tenant: Tenant) -> int:
    """As the driver tells a program without the library."""
    return tenant.told("info")[2] // MIB


@pytest.mark.usefixtures("growth_allowed")
def test_a_slice_grows_for_the_driver_once_the_keeper_has_set_it(
    cluster: Cluster, limited: Limited
) -> None:
    """After the ledger and the node's list; the program needs no restart and no library."""
    tenant = static(cluster, "grown")
    limited.keeper.stop()
    told = kubectl_gpu(cluster, "resize", "grown", "--mem", "8")
    wait_for_units(cluster, 54)

    assert "NVIDIA's driver: no limit keeper answers" in told
    assert sizes_of(limited.grant("grown")).booked.units == 8
    assert drivers_limit_mib(tenant) == SLICE_MIB
    assert tenant.told(f"alloc 1 {4000 * MIB}") == [OUT_OF_MEMORY]
    limited.keeper.start()
    kubectl_gpu(cluster, "resize", "grown", "--mem", "8", "--wait")
    assert limited.mark("grown", "driver-revision") == "1\n"
    assert drivers_limit_mib(tenant) == EIGHT_UNITS
    assert tenant.told(f"alloc 1 {4000 * MIB}") == [0]


@pytest.mark.usefixtures("growth_allowed")
@pytest.mark.parametrize("accounting", [0, 1], ids=["misc", "dmem"])
def test_a_slice_shrinks_for_the_driver_under_use_and_over_a_restart_of_the_agent(
    cluster: Cluster, limited: Limited, accounting: int
) -> None:
    """Its file first; nothing is given back before the driver's limit holds, which misc refuses below the use."""
    set_accounting(limited, accounting)
    tenant = static(cluster, "shrunk")
    kubectl_gpu(cluster, "resize", "shrunk", "--mem", "8", "--wait")
    assert tenant.told(f"alloc 1 {4000 * MIB}") == [0]
    told = kubectl_gpu(cluster, "resize", "shrunk", "--mem", "2")
    is_refused = accounting == 0

    assert "it uses more; the driver's limit" in told
    assert drivers_limit_mib(tenant) == (EIGHT_UNITS if is_refused else SLICE_MIB)
    assert tenant.told(f"alloc 2 {MIB}") == [0 if is_refused else OUT_OF_MEMORY]
    assert tenant.once("init", "total")[1] == [0, SLICE_MIB * MIB]  # with the library
    limited.agent.kill()
    limited.agent.start()
    wait_for_units(cluster, 54)
    assert tenant.told("free 1") == [0]
    kubectl_gpu(cluster, "resize", "shrunk", "--mem", "2", "--wait")
    assert limited.mark("shrunk", "driver-revision") == "2\n"
    assert drivers_limit_mib(tenant) == SLICE_MIB
    wait_for_units(cluster, 60)


@pytest.mark.parametrize("order", [("theirs", "ours"), ("ours", "theirs")])
def test_both_hooks_leave_the_same_limit_in_either_order(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """With the variables that the CDI device sets; afterwards there is nothing to repair."""
    hooks = both_hooks(tmp_path)
    env = ["NVIDIA_GPU_MEMORY_REQUEST=0", f"NVIDIA_GPU_MEMORY_LIMIT={SLICE_MIB}"]
    (tmp_path / "config.json").write_text(json.dumps({"process": {"env": env}}))
    leaf = cgroup_tree() / f"hooks-{os.getpid()}"
    leaf.mkdir()
    process = subprocess.Popen(["sleep", "600"])
    try:
        (leaf / "cgroup.procs").write_text(str(process.pid))
        state = json.dumps({"pid": process.pid, "bundle": str(tmp_path)})
        for name in order:
            subprocess.run(hooks[name], input=state, text=True, check=True)
        told = subprocess.check_output([*hooks["ours"], "--repair"], input=state, text=True)
    finally:
        process.kill()
        process.wait()
        leaf.rmdir()
    assert told == "held\n"


def both_hooks(place: Path) -> dict[str, list[str]]:
    """The commands for a container with a slice of the first card of a node of its own."""
    cards, directory = place / "cards", place / "slice"
    cards.mkdir()
    (directory / "config").mkdir(parents=True)
    node = SimulatedNode.create("v100", cards, driver_version=DRIVER)
    uuid = node.view().cards[0].uuid
    text = f"version=1\nslice=22aa\npolicy=fixed\ndevice={uuid} memory_bytes={SLICE_MIB * MIB}\n"
    (directory / "config" / "limits").write_text(text)
    by_name = {each["name"]: each for each in nvidias_devices(node, place)["devices"]}
    (theirs,) = by_name[uuid]["containerEdits"]["hooks"]
    ours = str(native_with_wrapped_hook(place) / "gpu-limit-hook")
    return {
        "ours": [ours, f"--slice={directory}", f"--driver-root={cards}"],
        "theirs": [theirs["path"], *theirs["args"][1:]],
    }


def set_accounting(limited: Limited, mode: int) -> None:
    """Of the simulated driver: 0 misc, 1 dmem, 2 off."""
    state = limited.agent.directories.simulated_node / STATE_NAME
    set_fields(state, [f"memory_accounting={mode}"])


def told(cluster: Cluster, name: str) -> str:
    """Why a pod's container waits."""
    found = cluster.find("pod", name) or {}
    return json.dumps(found.get("status", {}).get("containerStatuses", []))
