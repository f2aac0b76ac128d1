"""A claim's CDI file gives a container what an answer to Allocate gives: the same golden edits."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.domain.grants.cdi_spec import cdi_spec, prepare_devices
from gpu_device_plugin.domain.grants.claims import AllocatedDevice, Claim, ClaimRef
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, DeviceNode, Mount

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "edits").glob("*.json"))
REF = ClaimRef("default", "c", "u1")


def edits_of(golden: dict[str, Any]) -> ContainerEdits:
    """The golden edits as the scheme makes them."""
    return ContainerEdits(
        envs=golden["envs"],
        mounts=tuple(Mount(**each) for each in golden["mounts"]),
        devices=tuple(DeviceNode(**each) for each in golden["devices"]),
        cdi_names=tuple(golden["cdi_names"]),
    )


def as_edits(spec: dict[str, Any]) -> dict[str, Any]:
    """What a container runtime makes of the file, in the words of the golden edits."""
    (device,) = spec["devices"]
    found = device["containerEdits"]
    return {
        "envs": dict(each.split("=", 1) for each in found["env"]),
        "mounts": [
            {
                "container_path": each["containerPath"],
                "host_path": each["hostPath"],
                "is_read_only": "ro" in each["options"],
            }
            for each in found.get("mounts", ())
        ],
        "devices": [
            {
                "container_path": each["path"],
                "host_path": each["hostPath"],
                "permissions": each["permissions"],
            }
            for each in found.get("deviceNodes", ())
        ],
    }


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_cdi_file_has_the_golden_edits(path: Path) -> None:
    """Names of cards that other CDI files have come beside it."""
    golden = json.loads(path.read_text(encoding="utf-8"))
    edits = edits_of(golden)
    spec: dict[str, Any] = cdi_spec(REF, "5f3c9a10", edits)

    names = golden.pop("cdi_names")
    assert as_edits(spec) == golden
    assert all({"nosuid", "nodev", "rbind"} < set(m["options"]) for m in spec["devices"][0]["containerEdits"].get("mounts", ()))  # fmt: skip
    device = AllocatedDevice("gpu-device-plugin", "n1", "gpu-0", "slice")
    (given,) = prepare_devices(Claim(REF, devices=(device,)), edits)
    assert given.cdi_ids == (f"{spec['kind']}=u1", *names)


def test_there_are_golden_edits() -> None:
    """Else the test above would say nothing."""
    assert len(GOLDEN) > 10
