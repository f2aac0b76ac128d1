"""Writes what the chart checks of NVIDIA's configuration files: `python -m tools.nvidia_schema`.

It is the JSON schema of the types with which the agent reads such a file, with its settings' choices.
tests/chart/test_fresh.py checks that it is up to date.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from gpu_device_plugin.settings.nvidia_configuration import FEWEST_REPLICAS, File
from gpu_device_plugin.settings.nvidia_settings import named_by_nvidia

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
                made["items"] = plain(way["items"], path)
        if choices.get(path):
            made["enum"] = choices[path]
        if path.endswith(".replicas"):
            made["minimum"] = FEWEST_REPLICAS
        return made

    return json.dumps(plain(schema, ""), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
