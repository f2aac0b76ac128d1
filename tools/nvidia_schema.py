"""Writes what the chart checks of NVIDIA's configuration files: `python -m tools.nvidia_schema`.

It is the JSON schema of the types with which the agent reads such a file, with its settings' choices.
tests/chart/test_fresh.py checks that it is up to date.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu_device_plugin.domain.grants.container_edits import ListStrategy
from gpu_device_plugin.domain.nvidia import configuration
from gpu_device_plugin.domain.nvidia.configuration import PREFIX
from gpu_device_plugin.settings import nvidia_settings
from gpu_device_plugin.settings.nvidia_configuration import FEWEST_REPLICAS, File
from gpu_device_plugin.settings.nvidia_settings import named_by_nvidia
from tools.chart_values import laid_out

_NAME = f"^({PREFIX})?{configuration._SUBDOMAIN.pattern}$"
_WAYS = "|".join(way for way in ListStrategy if way is not ListStrategy.AUTO)
_ROOT = {"pattern": "^(/|$)"}
BOUNDS: Mapping[str, Mapping[str, Any]] = {
    ".nvidiaDriverRoot": _ROOT,
    ".nvidiaDevRoot": _ROOT,
    ".deviceListStrategy": {"pattern": f"^ *(auto|({_WAYS})( *, *({_WAYS}))*) *$", "minItems": 1},
    ".deviceListStrategy[]": {"pattern": f"^ *(auto|{_WAYS}) *$"},
    ".oneshot": {"enum": [False]},
    ".useNodeFeatureAPI": {"enum": [False]},
    ".sleepInterval": {
        "pattern": f"^({nvidia_settings._INTERVAL})$",
        "minimum": nvidia_settings._SHORTEST_INTERVAL_SECONDS * 10**9,
    },
    ".channelIDs": {"maxItems": 1},
    ".channelIDs[]": {"minimum": 0, "maximum": 0},
    "timeSlicing": {"required": ["resources"]},
    "mps": {"required": ["resources"]},
    "timeSlicing.resources": {"minItems": 1},
    "mps.resources": {"minItems": 1},
    ".name": {"pattern": _NAME},
    ".rename": {"pattern": f"^$|{_NAME}"},
    ".replicas": {"minimum": FEWEST_REPLICAS},
    ".devices": {"pattern": "^all$", "minimum": 1, "minItems": 1},
    ".devices[]": {"pattern": f"^({configuration._REFERENCE.pattern})$", "minimum": 0},
}
"""What the settings' own code refuses, by the end of a key's path; `[]` is an entry of a list."""

SCHEMA = Path(__file__).resolve().parents[1] / "charts/gpu-device-plugin/nvidia-configuration.json"


def text() -> str:
    """The file, for a template of helm's: without references, and without null, which is as no key."""
    schema = msgspec.json.schema(File)
    choices = {names.path: each.choices for each, names in named_by_nvidia() if not each.is_list}

    def plain(node: dict[str, Any], path: str) -> dict[str, Any]:
        ways = [
            schema["$defs"][way["$ref"].rpartition("/")[2]] if "$ref" in way else way
            for way in node.get("anyOf", [node])
        ]
        made: dict[str, Any] = {"type": [way["type"] for way in ways if way["type"] != "null"]}
        for way in ways:
            if "properties" in way:
                keys = way["properties"].items()
                made["properties"] = {
                    key: plain(value, f"{path}.{key}".lstrip(".")) for key, value in keys
                }
                made["required"] = way["required"]
            if "items" in way:
                made["items"] = plain(way["items"], f"{path}[]")
        if choices.get(path):
            made["enum"] = choices[path]
        for end, bounds in BOUNDS.items():
            made |= bounds if path.endswith(end) else {}
        return made

    return laid_out(plain(schema, ""))


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
