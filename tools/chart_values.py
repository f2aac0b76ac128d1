"""Writes what the chart says of its values: `python -m tools.chart_values`.

values.schema.json has a value's type from its default in values.yaml and its description from the comment there. A value
that is a setting of the agent or the controller has type, bounds and description from the setting, and a comment only
where the chart adds something. templates/_settings.tpl gives the agent its settings. tests/chart/test_fresh.py checks
that both files are up to date.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_device_plugin.domain.grants.container_edits import ListStrategy
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.nvidia.mig_devices import MODELS
from gpu_device_plugin.nvml.xids import Table
from gpu_device_plugin.settings.agent_settings import CLASS_NAME, Settings
from gpu_device_plugin.settings.controller_settings import ControllerSettings
from gpu_device_plugin.settings.nvidia_settings import Fallback
from gpu_device_plugin.settings.setting import Setting, directory, optional_directory, settings_of
from gpu_device_plugin.simulation.node_profiles import profile_names

CHART = Path(__file__).resolve().parents[1] / "charts/gpu-device-plugin"
SCHEMA, TEMPLATE = CHART / "values.schema.json", CHART / "templates/_settings.tpl"
VALUES = CHART / "values.yaml"
WHOLE = "resources"
"""Objects whose keys are not the chart's."""
OPTIONAL = re.compile(
    r"resources|tolerations|priorityClassName|rollingUpdate|maxUnavailable|grafana_dashboard"
)
"""Values with a default that may be taken away by null."""
REQUIRED = (
    "startupTaint",
    "config.name",
    "config.default",
    "controller.tls.secretName",
    "controller.tls.clientSecretName",
    "dra.namespaces",
    "policies.annotationWriters",
)
"""Values of which templates need at least the empty one."""
OTHERWISE = ("nvmlLibrary", "xidTable")
"""Values of which a template makes the setting: a path below `driverRoot`, and the rows themselves."""
OF_NODES = ("mode", "memory_unit", "isolation", "device_list_strategy", "recovery_seconds")
"""Settings that a kind of nodes may have of its own; in the agents' pod nothing follows from them."""
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_OBJECTS = {"items": {"type": "object"}}
_DNS, _LABEL = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?", "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WAYS = [way.value for way in ListStrategy if way is not ListStrategy.AUTO]
_WAY = "|".join(_WAYS)
_PATH = "/[^:]*[^/:]"
_PORT = {"minimum": 1, "maximum": 65535}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these keys only."""
    made = {"type": "object", "additionalProperties": False, "properties": properties}
    return made | ({"required": list(required)} if required else {})


_TEXT, _BOOLEAN = {"type": "string"}, {"type": "boolean"}
BOUNDS: Mapping[str, Mapping[str, Any]] = {
    r"(name|fullname|namespace)Override": {"pattern": f"^$|^{_LABEL}$"},
    r".*image\.repository": {"minLength": 1},
    r".*\.digest": {"pattern": "^(sha256:[0-9a-f]{64})?$"},
    r".*\.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    r"imagePullSecrets": {"items": _object("name", name=_TEXT)},
    # cGPU's numbers too; 0 and 4 are refused in words of their own.
    r"computePolicy": {"type": ["string", "integer"], "enum": [
        "fixed", "work-conserving", "native", *"312504", *map(int, "312504"),
    ]},
    r"sandboxRuntimeClasses": {"items": {"type": "string", "pattern": f"^{CLASS_NAME}$"}},
    r"deviceListStrategy": {
        "type": ["string", "null", "array"],
        "pattern": f"^$|^auto$|^({_WAY})(,({_WAY}))*$",
        "minItems": 1,
        "items": {"enum": _WAYS},
    },
    r"nodeSettings\.map": {
        "propertyNames": {"pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"},
    },
    r"nodeSettings\.map\..*\.mode": {
        "enum": [mode for mode in NodeMode if mode not in (NodeMode.MIG, NodeMode.MPS)],
    },
    # Not volume-mounts, which changes the agent's own pod, and so all nodes.
    r"nodeSettings\.map\..*\.deviceListStrategy": {
        "type": "string",
        "pattern": f"^({_WAY})(,({_WAY}))*$".replace("volume-mounts|", ""),
    },
    r"config\.map": {
        "additionalProperties": {"type": ["string", "object"]},
        "propertyNames": {"pattern": "^[-._a-zA-Z0-9]{1,253}$"},
    },
    r"config\.fallbackStrategies": {"items": {"enum": list(Fallback)}},
    r"migProfile": {"enum": [
        "", *sorted({
            name
            for model in MODELS
            for profile in model.profiles
            for name in (profile.name, profile.name.replace("+", "."), profile.alias)
        }),
    ]},
    r"mps\.root": {"pattern": "^/[^/]"},
    r"driverRoot|cdi\.(generator|hook)": {"pattern": f"^$|^{_PATH}$"},
    r"nvmlLibrary": {"pattern": "^$|^[^/]"},
    r"cdiDir": {"pattern": "^/"},
    r"(.*\.)?nodeSelector|pod(Labels|Annotations)|serviceAccount\.annotations|.*\.labels": _TEXTS,
    r"driverUpgrades": {"enum": ["affinity", "nodeSelector"]},
    r"(.*\.)?tolerations": {"items": _object(
        key=_TEXT,
        operator={"enum": ["Exists", "Equal"]},
        value=_TEXT,
        effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        tolerationSeconds={"type": "integer"},
    )},
    r"updateStrategy\.type": {"enum": ["RollingUpdate", "OnDelete"]},
    r".*\.maxUnavailable": {"type": ["integer", "string"]},
    r"(.*\.)?resources": _object(requests={"type": "object"}, limits={"type": "object"}),
    r"seLinuxOptions": _object(user=_TEXT, role=_TEXT, type=_TEXT, level=_TEXT),
    r"metrics\.port|controller\.metricsPort": _PORT,
    r".*\.interval": {"pattern": "^[0-9]+(ms|s|m|h)$"},
    r".*\.networkPolicy\.(metricsF|f)rom|networkPolicy\.from|extraObjects": _OBJECTS,
    r"extraEnv": {"items": _object("name", name=_TEXT, value=_TEXT, valueFrom={"type": "object"})},
    r"policies\.validationActions": {
        "minItems": 1, "uniqueItems": True, "items": {"enum": ["Deny", "Warn", "Audit"]},
    },
    r"policies\.annotationWriters": {
        "uniqueItems": True, "items": {"type": "string", "pattern": "^[^'\"\\\\,]+$"},
    },
    r"policies\.cdiNamespaces": {
        "type": ["array", "null"],
        "uniqueItems": True,
        "items": {"type": "string", "maxLength": 63, "pattern": f"^{_LABEL}$"},
    },
    r"hooks\.uninstall\.timeoutSeconds": {"minimum": 1, "maximum": 86400},
    r"controller\.webhook\.timeoutSeconds": {"minimum": 1, "maximum": 30},
    r".*\.replicas": {"minimum": 1, "maximum": 9},
    r"controller\.clusterIP": {"pattern": "^$|^[0-9a-f.:]+$"},
    r".*\.(secretName|clientSecretName|issuer\.name|clientCaConfigMap)": {"pattern": f"^$|^{_DNS}$"},
    r".*\.issuer\.kind": {"enum": ["Issuer", "ClusterIssuer"]},
    r".*FailurePolicy": {"enum": ["Fail", "Ignore"]},
    r"controller\.webhook\.caBundle": {"pattern": "^$|^-----BEGIN CERTIFICATE-----"},
    r"scheduler\.name": {"pattern": f"^{_DNS}$"},
    r"scheduler\.namedBy": {"enum": ["auto", "policy", "webhook", "nobody"]},
    r"page\.prometheus": {"pattern": r"^$|^https?://\S+$|^[-a-z0-9]+/[-a-z0-9.]+:[a-z0-9-]+$"},
    r"page\.grafana": {"pattern": r"^$|^https?://\S+$"},
    r"page\.teamLabel": {"pattern": "^[-A-Za-z0-9_./]*$"},
    r"dra\.namespaces": {
        "uniqueItems": True,
        "items": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
    },
    r"dra\.wholeCards": {"pattern": "^$|^[a-z0-9.-]+/[A-Za-z0-9._-]+$"},
    r"dra\.schedulerName": {"pattern": "^([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?)?$"},
    r"dra\.claimMakers": {"minItems": 1, "items": {"type": "string", "pattern": r"^[^'\\]+$"}},
    r"simulate\.profile": {"enum": ["", *sorted(profile_names())]},
    r"simulate\.driverVersion": {"pattern": r"^$|^[0-9]+(\.[0-9]+){1,2}$"},
}  # fmt: skip
"""What neither a default nor a setting says of a value, by its path."""

_TYPES = {bool: "boolean", int: "integer", float: "number", tuple: "array", list: "array"}
_SWITCH = ("on", "off")
_WORDS = {"ge": "minimum", "le": "maximum", "pattern": "pattern", "max_length": "maxLength"}


def of_settings() -> dict[str, Setting]:
    """The settings that are values, by path."""
    paths = comments(VALUES.read_text(encoding="utf-8"))
    of_agent = {each.value or _camel(each.key): each for each in settings_of(Settings)}
    of_controller = {
        f"controller.{each.value or _camel(each.key)}": each
        for each in settings_of(ControllerSettings)
    }
    return {
        path: each
        for path, each in (of_agent | of_controller).items()
        if path in paths and path not in OTHERWISE
    }


def _camel(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(map(str.capitalize, others))


def comments(text: str) -> dict[str, str]:
    """The comment right above each value, by the value's path; a line `## Heading` is none."""
    found: dict[str, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if comment := re.fullmatch(r" *#(?!#) ?(.*)", line):
            above.append(comment[1])
            continue
        if key := re.match(r"( *)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            found[".".join(path)] = " ".join(above)
        above = []
    return found


def schema() -> dict[str, Any]:
    """The schema of values.yaml."""
    text = VALUES.read_text(encoding="utf-8")
    said, known = comments(text), of_settings()

    def described(default: Any, path: str) -> dict[str, Any]:
        setting = known.get(path)
        parts = [setting.text] if setting else []
        if setting and setting.choices and setting.choices != _SWITCH:
            parts.append(f"One of {', '.join(f'`{each}`' for each in setting.choices)}.")
        words = " ".join(filter(None, [*parts, said[path]]))
        made: dict[str, Any] = {"description": words} if words else {}
        if setting:
            made |= _of_setting(setting, default)
        elif not isinstance(default, dict):
            made["type"] = _TYPES.get(type(default), "string")
        elif not default or path.rpartition(".")[2] == WHOLE:
            made["type"] = "object"
        else:
            made |= of_object(default, f"{path}.")
        return made | bounds_of(path)

    def of_object(defaults: Mapping[str, Any], path: str) -> dict[str, Any]:
        keys = {key: described(each, path + key) for key, each in defaults.items()}
        return _object(*_required(defaults, path), **keys)

    made = of_object(yaml.safe_load(text), "")
    properties = made["properties"]
    properties["xidTable"]["$ref"] = "#/$defs/Table"
    properties["nodeSettings"]["properties"]["map"]["additionalProperties"] = {
        **_object(**{
            path: _of_setting(each, 0) | bounds_of(f"nodeSettings.map.*.{path}")
            for path, each in known.items()
            if each.key in OF_NODES
        }),
        "minProperties": 1,
    }  # fmt: skip
    properties["global"] = {
        "type": "object",
        "description": "Of all charts of a parent chart; imageRegistry is used here.",
        "properties": {"imageRegistry": _TEXT},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of gpu-device-plugin",
        **made,
        "$defs": msgspec.json.schema_components((Table,), ref_template="#/$defs/{name}")[1],
    }


def bounds_of(path: str) -> dict[str, Any]:
    """What BOUNDS has for a path."""
    found: dict[str, Any] = {}
    for pattern, bounds in BOUNDS.items():
        found |= bounds if re.fullmatch(pattern, path) else {}
    return found


def _required(values: Mapping[str, Any], path: str) -> list[str]:
    """A default that is something is needed; null stands for a default that is nothing."""
    return [
        key
        for key, default in values.items()
        if path + key in REQUIRED
        or (default not in (None, "", [], {}) and not OPTIONAL.fullmatch(key))
    ]


def _of_setting(setting: Setting, default: Any) -> dict[str, Any]:
    if setting.choices == _SWITCH:
        return {"type": "boolean"}  # as YAML reads them
    if setting.choices:
        # A default that is nothing leaves the choice to the agent.
        nothing = [""] if default == "" else []
        return {"enum": [*nothing, *setting.choices]}
    made: dict[str, Any] = {"type": _TYPES.get(setting.kind, "string")}
    if setting.is_list:
        made["type"] = "array"
    if default is None:
        made["type"] = [made["type"], "null"]
    if setting.convert in (directory, optional_directory):
        made["pattern"] = f"^{_PATH}$" if setting.convert is directory else "^$|^/"
    return made | {_WORDS[name]: bound for name, bound in setting.bounds.items()}


def template() -> str:
    """What the agent is given of those values at the top that are settings; parts of the chart give theirs."""
    given = {path: each for path, each in of_settings().items() if "." not in path}
    keys = {each.key: path for path, each in given.items() if not _is_variable(each)}
    variables = {each.variables[1]: path for path, each in given.items() if _is_variable(each)}
    return (
        "{{/* Written by python -m tools.chart_values; do not edit. */}}\n"
        + _dictionary("fileSettings", "Keys of the agent's file, as JSON: given are values.", keys)
        + _dictionary("nvidiaSettings", "The same of NVIDIA's variables.", variables)
    )


def _dictionary(name: str, what: str, paths: Mapping[str, str]) -> str:
    pairs = "".join(f'\n  "{key}" .{path}' for key, path in paths.items())
    head = f'\n{{{{/* {what} */}}}}\n{{{{- define "gpu-device-plugin.{name}" -}}}}\n'
    return f"{head}{{{{- dict{pairs} | toJson }}}}\n{{{{- end }}}}\n"


def _is_variable(setting: Setting) -> bool:
    """Whether it is given as a variable of NVIDIA's; what nodes may have of their own has to be in a file."""
    return bool(setting.extra) and setting.key not in (*OF_NODES, "pass_device_specs")


def laid_out(schema: Mapping[str, Any]) -> str:
    """The text of a schema: an object's keys on lines of their own, anything else on one line."""

    def shown(node: Any, indent: str, key: str) -> str:
        if not isinstance(node, dict) or not (
            key in {"properties", "$defs"} or "properties" in node
        ):
            return json.dumps(node, ensure_ascii=False)
        inner = f"{indent} "
        lines = (
            f"{inner}{json.dumps(key)}: {shown(each, inner, key)}" for key, each in node.items()
        )
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    return shown(schema, "", "") + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(laid_out(schema()), encoding="utf-8")
    TEMPLATE.write_text(template(), encoding="utf-8")
