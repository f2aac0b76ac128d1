"""The agent is itself the probe for what containers without a request see (R-722)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.harness.rig import running_rig, slice_of, until

from gpu_device_plugin.agent.node_checks.exposure import Exposure
from gpu_device_plugin.agent.node_checks.lost_devices import LostDevices

DEFAULT_RUNTIME = ""


def exposure(
    place: Path, visible: str = "all", *, has_nodes: bool = True, bounds: str = "0" * 16
) -> Exposure:
    """An agent's container with these facts."""
    devices = place / "dev"
    devices.mkdir()
    if has_nodes:
        (devices / "nvidiactl").touch()
    status = place / "status"
    status.write_text(f"Name:\tpython\nCapBnd:\t{bounds}\nSeccomp:\t2\n")
    return Exposure({"NVIDIA_VISIBLE_DEVICES": visible}, devices, status)


@pytest.mark.parametrize("left", ["all", "void"])
def test_cards_given_for_the_variable_alone_prove_it(tmp_path: Path, left: str) -> None:
    """The runtime leaves the variable, or in its CDI mode says void (R-722)."""
    assert exposure(tmp_path, left).find(DEFAULT_RUNTIME)


@pytest.mark.parametrize("runtime_class", ["nvidia", None])
def test_a_runtime_of_its_own_or_no_pod_proves_nothing(
    tmp_path: Path, runtime_class: str | None
) -> None:
    assert not exposure(tmp_path).find(runtime_class)


def test_cards_named_by_mounts_prove_nothing(tmp_path: Path) -> None:
    found = exposure(tmp_path, "/var/run/nvidia-container-devices")
    assert not found.find(DEFAULT_RUNTIME)


def test_without_device_nodes_the_variable_was_not_followed(tmp_path: Path) -> None:
    assert not exposure(tmp_path, has_nodes=False).find(DEFAULT_RUNTIME)


def test_a_privileged_agent_proves_nothing(tmp_path: Path) -> None:
    """Privileged containers are given everything in any case."""
    assert not exposure(tmp_path, bounds="000001ffffffffff").find(DEFAULT_RUNTIME)


DEVICE_RULES = Path("/sys/fs/cgroup/devices")
DENIED = """
import os, sys
from pathlib import Path
from gpu_device_plugin.agent.node_checks.lost_devices import LostDevices

group, mark, device = Path(sys.argv[1]), Path(sys.argv[2]), Path("/dev/full")
check = LostDevices(mark, device)
(group / "cgroup.procs").write_text(str(os.getpid()))
before = check.find()
(group / "devices.deny").write_text("c 1:7 rwm")
print(before, LostDevices(mark, device).find(), check.find(), sep="|")
"""


@pytest.mark.skipif(
    not os.access(DEVICE_RULES / "devices.deny", os.F_OK) or os.geteuid() != 0,
    reason="needs root and the device cgroup of version 1",
)
def test_a_device_that_the_cgroup_denies_later_is_reported(tmp_path: Path) -> None:
    """As systemd does it to a container whose devices NVIDIA's hook has added; one that was never allowed is no news.

    The next agent, in a new container that may open it, knows that there is an end to report.
    """
    mark = tmp_path / "devices-denied"
    group = DEVICE_RULES / f"gpu-device-plugin-test-{os.getpid()}"
    group.mkdir()
    try:
        command = [sys.executable, "-c", DENIED, str(group), str(mark)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        group.rmdir()
    before, never_allowed, after = done.stdout.strip().split("|")

    assert (before, never_allowed) == ("None", "None")
    assert "may no longer open /dev/full" in after
    successor = LostDevices(mark, Path("/dev/full"))
    assert successor.was_lost
    assert successor.find() is None
    assert not mark.exists()


async def test_a_container_without_limits_beside_slices_is_named() -> None:
    """One whose isolation the operator lets it switch off; whole cards never meet slices on a card."""
    async with running_rig(honor_cgpu_disable=True) as rig:
        await rig.admit("free", slice_of(2, 30), env={"CGPU_DISABLE": "true"})
        await rig.admit("held", slice_of(2, 30))
        assert rig.card_of("free") == rig.card_of("held")

        def told() -> str:
            return rig.annotations().get("gpu-device-plugin/holdings", "")

        await until(lambda: told().count("slices") == 2, 20)
        assert told().count('"enforcers":[["nobody","nobody"]]') == 1
        page = (await rig.page("metrics"))[1]
        named = [line for line in page.splitlines() if "slice_enforcers{" in line]
        assert [line.count("nobody") for line in named if 'pod="free"' in line] == [2]
        assert [line.count("library") for line in named if 'pod="held"' in line] == [2]
