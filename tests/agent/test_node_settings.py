"""A node label chooses the agent's settings; what is not known is never guessed."""

import signal
from pathlib import Path

import pytest
from tools.harness.rig import MEM, Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.agent.node_checks.node_settings import file_of
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import Settings

SMALL = "memory_unit: 128MiB\nmode: share\n"
RESTART = 75


def settings_of(rig: Rig, **files: str) -> Path:
    """A directory of settings by name."""
    directory = rig.root / "node-settings"
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"node-{name}.yaml").write_text(text)
    return directory


async def test_the_label_chooses_the_unit_and_another_label_starts_the_agent_again() -> None:
    async with running_rig(is_started=False) as rig:
        directory = settings_of(rig, small=SMALL)
        await rig.set_labels(settings="small")
        await rig.start_agent(node_settings_dir=directory)
        await until(lambda: rig.kubelet.allocatable(MEM) == 4 * 126, 40)

        await rig.set_labels()
        assert await rig.exit_code() == RESTART
        await rig.start_agent(node_settings_dir=directory)
        await until(lambda: rig.kubelet.allocatable(MEM) == 60, 40)


async def test_the_choice_is_remembered_while_the_api_server_is_away() -> None:
    async with running_rig(is_started=False) as rig:
        directory = settings_of(rig, small=SMALL)
        await rig.set_labels(settings="small")
        await rig.serve(node_settings_dir=directory)
        await rig.stop_agent()
        await rig.api.stop()
        await rig.start_agent(node_settings_dir=directory)
        await until(lambda: rig.kubelet.allocatable(MEM) == 4 * 126, 40)


async def test_a_node_of_which_nothing_is_known_waits_for_the_api_server() -> None:
    """It might count in another unit; SIGHUP does not end it meanwhile."""
    async with running_rig(is_started=False) as rig:
        directory = settings_of(rig, small=SMALL)
        await rig.set_labels(settings="small")
        await rig.api.stop()
        await rig.start_agent(node_settings_dir=directory)
        await until(lambda: "the node's label is not known yet" in rig.log.read_text(), 20)
        assert rig.process is not None
        rig.process.send_signal(signal.SIGHUP)
        await rig.api.start()
        await until(lambda: rig.kubelet.allocatable(MEM) == 4 * 126, 40)


async def test_a_label_that_names_no_settings_stops_the_start_and_not_a_running_agent() -> None:
    async with running_rig(is_started=False) as rig:
        directory = settings_of(rig, small=SMALL)
        await rig.serve(node_settings_dir=directory)
        await rig.set_labels(settings="large")
        await until(lambda: "the settings stay as they are" in rig.log.read_text(), 20)
        assert rig.is_running
        await rig.stop_agent()
        await rig.start_agent(node_settings_dir=directory)
        assert await rig.exit_code() == 2
        assert "matches no settings" in rig.log.read_text()


def test_what_is_there_is_named(tmp_path: Path) -> None:
    settings = Settings(node_name="n1", node_settings_dir=str(tmp_path))
    assert file_of(settings, "") is None
    with pytest.raises(ConfigError, match=r"settings=a of node n1 matches no settings; .* none"):
        file_of(settings, "a")
    for name in ("node-b.yaml", "node-c.yaml", "config.yaml"):
        (tmp_path / name).touch()
    assert file_of(settings, "c") == tmp_path / "node-c.yaml"
    with pytest.raises(ConfigError, match="has: b, c"):
        file_of(settings, "../config")
