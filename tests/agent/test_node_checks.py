"""What keeps the whole node from serving becomes a fault of it, and ends when it is over."""

import asyncio
import errno
from pathlib import Path

import pytest
import yaml
from tests.agent.agent_parts import settings_below
from tools.harness.waiting import until

from gpu_device_plugin.agent.check_table import node_checks
from gpu_device_plugin.agent.node_checks.lost_devices import LOST_DEVICES
from gpu_device_plugin.agent.node_checks.node_checks import (
    OLDEST_KUBELET,
    find_driver_upgrade,
    find_old_kubelet,
)
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.selinux import SelinuxKernel
from gpu_device_plugin.domain.node.modes import NodeMode

FAULT = "LabelsMissing"


class Policy:
    """A kernel with SELinux, whose policy lets us label or not."""

    def __init__(self, place: Path) -> None:
        self.is_refusing = True
        (place / "enforce").write_text("1")
        self.labels: dict[Path, str] = {}
        self.kernel = SelinuxKernel(place / "enforce", place / "no", self.read, self.write)

    def read(self, path: Path) -> str:
        return self.labels.get(path, "system_u:object_r:var_run_t:s0")

    def write(self, path: Path, label: str) -> None:
        if self.is_refusing:
            raise PermissionError(errno.EACCES, "Permission denied")
        self.labels[path] = label


async def test_what_an_earlier_agent_has_reported_is_reported_as_over_once(short_dir: Path) -> None:
    """The cure of lost devices is a new container, in which the next agent runs: it sees the end."""
    settings = settings_below(short_dir)
    mark = Path(settings.run_dir) / LOST_DEVICES
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    wiring = Wiring(settings)
    reported: list[str] = []
    wiring.recorder.post = lambda note: reported.append(note.reason)

    checks = node_checks(wiring)
    checks.look()
    checks.look()

    assert reported.count("DevicesDeniedOver") == 1
    assert "DevicesDenied" not in reported
    assert reported.count("RunDirectoryShared") == 1
    assert not mark.exists()


async def test_directories_that_containers_may_not_read_stop_the_node_until_they_may(
    short_dir: Path,
) -> None:
    """In modes that mount nothing from there it is no matter."""
    settings = settings_below(short_dir)
    policy = Policy(short_dir)
    wiring = Wiring(settings, kernel=policy.kernel)

    def is_stopped() -> bool:
        return FAULT in wiring.node_store.read().faults

    wiring.node_store.update(mode=NodeMode.SHARE)
    every = node_checks(wiring)
    checks = asyncio.create_task(every.run())
    await asyncio.wait_for(every.has_checked.wait(), 60)
    assert not is_stopped()
    wiring.node_store.update(mode=NodeMode.CORE_MEM)
    await until(is_stopped, 20)
    text = wiring.node_store.read().faults[FAULT]
    assert f"{short_dir / 'run_dir'} has the label system_u:object_r:var_run_t:s0" in text
    policy.is_refusing = False
    await until(lambda: not is_stopped(), 20)
    checks.cancel()
    await asyncio.gather(checks, return_exceptions=True)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.33.9", True),
        ("v1.9.11-gke.5", True),
        ("v1.34.0", False),
        ("v1.34.2-eks-113cf36", False),
        ("v1.36.3", False),
        ("v2.0.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_a_kubelet_before_the_oldest_supported_one_is_reported(
    version: str,
    expected: bool,  # noqa: FBT001
) -> None:
    assert (find_old_kubelet(version) is not None) is expected


def test_the_chart_and_the_pages_name_the_same_oldest_version() -> None:
    root = Path(__file__).parents[2]
    oldest = ".".join(map(str, OLDEST_KUBELET))
    chart = yaml.safe_load((root / "charts/gpu-device-plugin/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={oldest}.0-0"
    for page in ("README.md", "docs/install.md", "docs/operations/requirements.md"):
        text = (root / page).read_text()
        assert f"{oldest} or later" in text, page


@pytest.mark.parametrize(
    ("state", "is_told"),
    [(None, False), ("", False), ("upgrade-done", False), ("drain-required", True)],
)
def test_a_driver_upgrade_of_the_operator_is_told_until_it_is_done(
    state: str | None,
    is_told: bool,  # noqa: FBT001
) -> None:
    labels = {} if state is None else {"nvidia.com/gpu-driver-upgrade-state": state}
    text = find_driver_upgrade(labels) or ""

    assert bool(text) is is_told
    assert not is_told or "=drain-required" in text
