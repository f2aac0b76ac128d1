"""A CDI spec brings simulated cards into containers as NVIDIA's brings real ones."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_device_plugin.cli.simulate import simulate
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.simulated_node import SimulatedNode, cdi_spec

MARKS = "/var/run/nvidia-container-devices"


def devices(spec: dict[str, Any]) -> dict[str, tuple[list[str], list[str]]]:
    """Name -> environment, and where something is mounted."""
    return {
        device["name"]: (
            device["containerEdits"]["env"],
            [mount["containerPath"] for mount in device["containerEdits"].get("mounts", ())],
        )
        for device in spec["devices"]
    }


def test_every_card_is_a_device_that_shows_itself_and_adds_to_others(tmp_path: Path) -> None:
    """Two devices in one container set the same variable, and two marks. `all` shows all."""
    node = SimulatedNode.create("v100", tmp_path, cards=2)
    uuids = [card.uuid for card in node.view().cards]

    found = devices(cdi_spec(node))

    assert found == {
        **{uuid: ([f"NVIDIA_VISIBLE_DEVICES={MARKS}"], [f"{MARKS}/{uuid}"]) for uuid in uuids},
        "all": (["NVIDIA_VISIBLE_DEVICES=all"], []),
    }


def test_libraries_and_state_file_are_mounted(tmp_path: Path) -> None:
    """Libraries read-only where the loader looks; the state as the driver's device: writable."""
    node = SimulatedNode.create("v100", tmp_path)
    program = tmp_path / "nvidia-smi"

    edits = cdi_spec(node, {"/usr/bin/nvidia-smi": program})["containerEdits"]

    assert isinstance(edits, dict)
    mounts = {
        mount["containerPath"]: (mount["hostPath"], mount["options"][0])
        for mount in edits["mounts"]
    }
    place = f"/usr/lib/{platform.machine()}-linux-gnu"
    assert mounts == {
        f"{place}/libnvidia-ml.so.1": (str(tmp_path / "libnvidia-ml.so.1"), "ro"),
        f"{place}/libcuda.so.1": (str(tmp_path / "libcuda.so.1"), "ro"),
        "/usr/bin/nvidia-smi": (str(program), "ro"),
        "/run/gpu-simulator/state": (str(node.state), "rw"),
    }


def test_mig_slices_are_devices_too(tmp_path: Path) -> None:
    """Named by their own UUIDs."""
    node = SimulatedNode.create("a100-mig", tmp_path, cards=1)
    (card,) = node.view().cards

    assert {instance.uuid for instance in card.instances} < devices(cdi_spec(node)).keys()


def test_a_node_without_libraries_beside_it_is_refused(tmp_path: Path) -> None:
    """There would be nothing to mount."""
    node = SimulatedNode.create("v100", tmp_path / "file")

    with pytest.raises(ConfigError, match="create it in a directory"):
        cdi_spec(node)


def test_the_command_prints_the_spec(tmp_path: Path) -> None:
    """Ready for /etc/cdi."""
    node = SimulatedNode.create("t4", tmp_path)

    told = CliRunner().invoke(simulate, ["cdi", "--state", str(tmp_path)])

    assert told.exit_code == 0, told.output
    assert json.loads(told.output) == json.loads(json.dumps(cdi_spec(node)))
