"""Settings of a kind of node: the file that the node's label `gpu-device-plugin/settings` names.

It is chosen before the agent is made, because a unit or a way to hand out devices cannot change in
a running agent. The choice is remembered, so that an agent also starts while the API server is
away; another value of the label ends the agent, to be started again.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from gpu_device_plugin.disk.state_file import MemoryFile
from gpu_device_plugin.domain.node.modes import SETTINGS_LABEL
from gpu_device_plugin.errors import ClusterError, ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import list_items
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.settings.agent_settings import Settings

ASK_SECONDS = 5.0
"""How long an agent with a remembered choice waits for the API server's answer."""
_LOOK_SECONDS = 1.0
_PREFIX, _SUFFIX = "node-", ".yaml"
_log = structlog.get_logger("node_settings")


class _Choice(msgspec.Struct):
    label: str | None = None


async def choose(settings: Settings) -> str:
    """Value of the node's label, empty where it has none: by the API server, or as remembered.

    A node of which nothing is known waits until the API server answers: it might be of another unit.
    """
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True)
    memory = MemoryFile(Path(settings.state_dir), "settings", _Choice, "")
    remembered = memory.load(time.time()).record.label
    api = ApiServer.at(Path(settings.kubeconfig) if settings.kubeconfig else None)
    try:
        async with asyncio.timeout(None if remembered is None else ASK_SECONDS):
            label = await _ask(api, settings.node_name)
    except TimeoutError:
        _log.warning("no answer of the API server: remembered settings", settings=remembered)
        return remembered or ""
    finally:
        await api.close()
    memory.save(_Choice(label))
    return label


def file_of(settings: Settings, label: str) -> Path | None:
    """The file of that label's value; None without a label. ConfigError: there is none."""
    if not label:
        return None
    directory = Path(settings.node_settings_dir)
    there = sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}"))
    names = [path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in there]
    if label not in names:
        raise ConfigError(
            f"label {SETTINGS_LABEL}={label} of node {settings.node_name} matches no settings; "
            f"{directory} has: {', '.join(names) or 'none'}"
        )
    return there[names.index(label)]


def is_other(settings: Settings, chosen: str, labels: Mapping[str, str]) -> bool:
    """Whether the node's label now names other settings than those that were chosen, which exist."""
    label = labels.get(SETTINGS_LABEL, "")
    if label == chosen:
        return False
    try:
        file_of(settings, label)
    except ConfigError as error:
        _log.error("the settings stay as they are", error=str(error))
        return False
    return True


async def _ask(api: ApiServer, node: str) -> str:
    trouble = ""
    while True:
        try:
            query = {"fieldSelector": f"metadata.name={node}"}
            found = [each async for each in list_items(api, "/api/v1/nodes", Bare, query)]
            if found:
                return found[0].labels.get(SETTINGS_LABEL, "")
            text = f"the API server has no node {node}"
        except ClusterError as error:
            text = str(error)
        if text != trouble:
            _log.warning("the node's label is not known yet", error=text)
        trouble = text
        await asyncio.sleep(_LOOK_SECONDS)
