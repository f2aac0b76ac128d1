"""The cap stays: whatever a pod writes, anyone who it runs as, whatever happens to the node."""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import STATE, Start
from tests.e2e.tenants import (
    INSIDE,
    MIB,
    OWN_PRELOAD,
    SERVE,
    SLICE_MIB,
    check_capped,
    is_about,
    row,
    same_card,
    start_tenant,
    tenant_pod,
)
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import FOUR_CARDS, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import DIRECTORY_VARIABLE, native_library

BIGGER = "version=1\\nslice=mine\\ndevice={uuid} memory_bytes=16000000000\\n"
# What a pod may write into its own env in the hope of more.
WISHES = {
    "ALIYUN_COM_GPU_MEM_CONTAINER": "15",
    "ALIYUN_COM_GPU_MEM_POD": "15",
    "ALIYUN_COM_GPU_MEM_DEV": "15",
    "CGPU_DISABLE": "true",
    "GPUSLICE_ROOT": "/told/mine",
    "NVIDIA_VISIBLE_DEVICES": "all",
}
ASK = "printf 'init\\nretain\\ninfo\\n' | client 2>&1"


def test_a_pods_own_environment_gains_nothing(isolating: Agent, start: Start) -> None:
    """Neither figures of its own, nor limits of its own, nor another preload list."""
    card = isolating.uuids()[0]
    mine = (
        f"mkdir -p /told/mine/config; printf '{BIGGER.format(uuid=card)}' >/told/mine/config/limits"
    )
    for name, value in {"unset": "", "other": "/lib64/ld-linux-x86-64.so.2"}.items():
        env = [{"name": key, "value": text} for key, text in WISHES.items()]
        env.append({"name": "LD_PRELOAD", "value": value})
        tenant = start(name, script=f"{mine}\n{SERVE}", env=env)
        tenant.open()

        assert tenant.told("count") == [0, 1]
        check_capped(tenant)


def test_a_preload_list_that_puts_the_driver_first_gets_no_card(start: Start) -> None:
    """Neither libc's own dlsym nor the driver, named in LD_PRELOAD, leads round the slice."""
    tenant = start("sly")
    for library in ("libc.so.6", "libcuda.so.1"):
        answers = tenant.run("sh", "-c", f"LD_PRELOAD={library}; export LD_PRELOAD; {ASK}")
        assert "LD_PRELOAD names the driver or the C library" in answers, library
        assert answers.split()[-1] == "0", answers


def test_neither_user_nor_a_read_only_root_changes_anything(start: Start) -> None:
    """No root, no capability, nothing writable but what we mount."""
    tenant = start(
        "poor",
        securityContext={
            "runAsUser": 4711,
            "runAsGroup": 4711,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    tenant.open()
    tenant.hold(337)

    assert tenant.run("id", "-u").strip() == "4711"
    check_capped(tenant)
    assert row(tenant.nvidia_smi())["memory"] == f"337MiB / {SLICE_MIB}MiB"
    assert "FAILED" not in tenant.run(f"{INSIDE}/gpu-selftest")


def test_a_user_namespace_changes_nothing(cluster: Cluster, start: Start) -> None:
    """hostUsers: false: root in there is nobody out here, and the region is his all the same."""
    runtimes = cluster.get("node", NODE)["status"].get("runtimeHandlers", [])
    if not any(runtime.get("features", {}).get("userNamespaces") for runtime in runtimes):
        pytest.skip("the node says userNamespaces: false")
    tenant = start("mapped", pod_hostUsers=False)
    tenant.open()
    tenant.hold(337)

    assert tenant.run("cat", "/proc/self/uid_map").split()[1] != "0"
    check_capped(tenant)
    assert row(tenant.nvidia_smi())["memory"] == f"337MiB / {SLICE_MIB}MiB"


def test_an_image_with_a_preload_file_of_its_own_is_capped(start: Start) -> None:
    """Our file hides the image's."""
    tenant = start("own-preload", image=OWN_PRELOAD)

    assert tenant.run("cat", "/etc/ld.so.preload") == f"{INSIDE}/libgpuslice.so\n"
    check_capped(tenant)


@pytest.fixture
def newer(isolating: Agent, tmp_path: Path) -> Iterator[Agent]:
    """An agent that brings another build, to be started in the isolating agent's place."""
    for name in ("libgpuslice.so", "gpu-selftest"):
        shutil.copy2(native_library(name), tmp_path)
    with (tmp_path / "libgpuslice.so").open("ab") as library:
        library.write(b"newer")
    agent = isolating.another({DIRECTORY_VARIABLE: str(tmp_path)})
    yield agent
    agent.stop()


def test_old_and_new_library_serve_one_card(
    cluster: Cluster, isolating: Agent, newer: Agent, start: Start
) -> None:
    """A container keeps the build it has mounted; here two builds of one source."""
    old = start("old")
    old.open()
    old.hold(337)
    isolating.stop()
    newer.start()
    wait_for_allocatable(cluster, FOUR_CARDS)
    new = start_tenant(cluster, tenant_pod("new", slice_of(2, 30)))
    new.open()
    new.hold(400)

    same_card(isolating, old, new)
    size = ("wc", "-c", f"{INSIDE}/libgpuslice.so")
    assert int(new.run(*size).split()[0]) == int(old.run(*size).split()[0]) + len("newer")
    for tenant, mib in ((old, 337), (new, 400)):
        check_capped(tenant)
        assert row(tenant.nvidia_smi())["memory"] == f"{mib}MiB / {SLICE_MIB}MiB"
        tenant.work()

    def told() -> bool:
        shares = newer.samples("gpu_device_plugin_slice_core_used_ratio")
        return len(shares) == 2 and all(is_about(share, 0.3) for share in shares.values())

    wait_for("each has 30 %", told, 60, 0.5)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A directory of the host in the container: what it says there outlives it."""
    directory = tmp_path / "told"
    directory.mkdir()
    return directory


def asking_pod(name: str, told: Path) -> dict[str, Any]:
    """A pod that asks its card again and again, and starts again when /told/end appears."""
    script = (
        f"rm -f /told/end; while [ ! -e /told/end ]; do {{ {ASK}; }} >>/told/log; sleep 0.3; done"
    )
    body = tenant_pod(name, slice_of(2, 30), script=script, pod_restartPolicy="Always")
    body["spec"]["volumes"] = [{"name": "told", "hostPath": {"path": str(told)}}]
    return body


def answers(told: Path) -> list[str]:
    """What the pod was told: results of cuInit, of a context, of cuMemGetInfo with its figures."""
    log = told / "log"
    return log.read_text().splitlines() if log.exists() else []


def check_never_uncapped(lines: Sequence[str]) -> None:
    """Wherever a total was told it was the slice's."""
    totals = {line.split()[2] for line in lines if re.fullmatch(r"0 \d+ \d+", line)}
    assert totals <= {str(SLICE_MIB * MIB)}


def is_capped(lines: Sequence[str]) -> bool:
    return any(line.endswith(f" {SLICE_MIB * MIB}") for line in lines)


def test_a_container_whose_files_are_gone_waits_for_the_agent(
    cluster: Cluster, isolating: Agent, told: Path
) -> None:
    """It ended while /run was empty and the agent away: it does not start, and then it is capped."""
    cluster.apply(asking_pod("orphan", told))
    wait_for("it is capped", lambda: is_capped(answers(told)))
    isolating.stop()
    shutil.rmtree(isolating.directories.run)
    shutil.rmtree(isolating.directories.library)
    (told / "end").touch()

    def state() -> dict[str, Any]:
        (status,) = cluster.get("pod", "orphan")["status"]["containerStatuses"]
        return dict(status["state"])

    wait_for("it is kept from starting", lambda: "waiting" in state(), 120, 0.3)
    before = len(answers(told))
    isolating.start()
    wait_for("it is capped again", lambda: is_capped(answers(told)[before:]), 120, 0.3)
    check_never_uncapped(answers(told))


def test_a_reboot_leaves_no_container_without_a_cap(
    cluster: Cluster, isolating: Agent, told: Path, tmp_path: Path
) -> None:
    """The kubelet starts pods again, or gives them up, before the agent is there."""
    cluster.apply(asking_pod("phoenix", told))
    wait_for("it is capped", lambda: is_capped(answers(told)))
    isolating.stop()
    cluster.node.power_off()
    shutil.rmtree(isolating.directories.run)
    before = len(answers(told))
    cluster.node.power_on()
    cluster.wait_until_ready()

    def is_settled() -> bool:
        return cluster.get("pod", "phoenix")["status"]["phase"] == "Failed" or is_capped(
            answers(told)[before:]
        )

    isolating.start()
    wait_for("the pod is served again, or given up", is_settled, 120, 0.3)
    after = tmp_path / "after"
    after.mkdir()
    cluster.apply(asking_pod("successor", after))
    wait_for("a new pod is capped", lambda: is_capped(answers(after)))
    check_never_uncapped([*answers(told), *answers(after)])


def test_a_container_without_a_slice_is_untouched(cluster: Cluster, isolating: Agent) -> None:
    """No file, no variable, no card of the node; not even for one that names cards itself."""
    assert isolating.program.running()
    wish = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    for name, env in {"plain": [], "wishing": wish}.items():
        tenant = start_tenant(cluster, tenant_pod(name, None, env=env))
        seen = tenant.run("sh", "-c", "env; cat /proc/mounts; ls -d /etc/* /run/* 2>&1; true")

        # Where the cluster itself lies stands in the options of the root's mount.
        assert "gpu-device-plugin" not in seen.replace(str(STATE), "")
        assert "ld.so.preload" not in seen
        assert "ALIYUN" not in seen
        assert "libcuda.so.1: cannot open shared object file" in tenant.run(
            "sh", "-c", f"{ASK}; true"
        )
