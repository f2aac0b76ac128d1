"""Flags, environment and file become one frozen `Settings`, or a ConfigError that names the key.

Precedence: flag, then environment, then file, then default. Every flag `--some-name` has
the environment variable `GPU_DEVICE_PLUGIN_SOME_NAME` and the key `some_name` in the file.
An unknown key in the file is an error; so is an unknown flag (the CLI sees to that). Unknown
environment variables are not: Kubernetes itself makes some with our prefix for a Service.
"""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import yaml

from gpu_device_plugin.domain.edits import DeviceAccess
from gpu_device_plugin.domain.modes import NodeMode, PlacementPolicy, check_unit, parse_mode
from gpu_device_plugin.domain.units import MemoryUnit
from gpu_device_plugin.errors import ConfigError

ENVIRONMENT_PREFIX = "GPU_DEVICE_PLUGIN_"
_OWN_VARIABLES = {"node_name": "NODE_NAME", "kubeconfig": "KUBECONFIG"}
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", ""})


class Isolation(enum.Enum):
    """Whether slices are enforced in the container."""

    ON = "on"
    OFF = "off"


class LogFormat(enum.Enum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


def _says(text: str, **bounds: Any) -> msgspec.Meta:
    """Effect of a setting, with its range."""
    return msgspec.Meta(description=text, **bounds)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator decided. A node label for a setting takes precedence."""

    node_name: Annotated[
        str,
        _says("Name of this Node object; required. Also NODE_NAME, usually from the downward API."),
    ] = ""
    kubeconfig: Annotated[
        str, _says("Path of a kubeconfig; by default the pod's service account is used.")
    ] = ""
    standalone: Annotated[
        bool, _says("Work without an API server: no labels, no Events, no pod specs.")
    ] = False
    mode: Annotated[
        NodeMode, _says("Node mode, if the node has no label `ack.node.gpu.schedule`.")
    ] = NodeMode.CORE_MEM
    memory_unit: Annotated[
        MemoryUnit, _says("Size of one aliyun.com/gpu-mem; 128MiB only with mode share.")
    ] = MemoryUnit.GIB
    placement: Annotated[
        PlacementPolicy,
        _says("Placement policy, if the node has no label `ack.node.gpu.placement`."),
    ] = PlacementPolicy.BINPACK
    nvml_library: Annotated[
        str, _says("Path of libnvidia-ml.so.1; by default the dynamic loader finds it.")
    ] = ""
    simulator_dir: Annotated[
        str,
        _says(
            "Directory of a simulated node, for evaluation: its cards are offered, and containers get its driver."
        ),
    ] = ""
    isolation: Annotated[
        Isolation,
        _says(
            "With `on` containers get limits and the isolation library; if it is missing, cards are unhealthy."
        ),
    ] = Isolation.ON
    device_access: Annotated[DeviceAccess, _says("How cards reach containers.")] = (
        DeviceAccess.NVIDIA
    )
    library_dir: Annotated[
        str, _says("Directory on the host for the versions of the isolation library.")
    ] = "/usr/local/lib/gpu-device-plugin"
    honor_cgpu_disable: Annotated[
        bool,
        _says("Whether CGPU_DISABLE=true in a container's own env turns its isolation off."),
    ] = False
    allow_other_plugin: Annotated[
        bool, _says("Serve even if another GPU device plugin serves this node's cards.")
    ] = False
    recovery_seconds: Annotated[
        float,
        _says(
            "Seconds that probes must be clean before a card with recovery `probe` is back.",
            ge=1,
            le=86400,
        ),
    ] = 30
    xid_table: Annotated[
        str, _says("A YAML file with rows that replace or extend the built-in table of XIDs.")
    ] = ""
    kubelet_dir: Annotated[
        str, _says("The kubelet's directory, which has device-plugins/ and pod-resources/.")
    ] = "/var/lib/kubelet"
    state_dir: Annotated[
        str, _says("State kept over reboots: grants, card numbers, health, the lock.")
    ] = "/var/lib/gpu-device-plugin"
    run_dir: Annotated[
        str, _says("Files of the slices, and the admin socket; empty after a boot.")
    ] = "/run/gpu-device-plugin"
    metrics_address: Annotated[str, _says("Address of /metrics, /healthz and /readyz.")] = ":9445"
    log_level: Annotated[
        str, _says("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")
    ] = "info"
    log_format: Annotated[LogFormat, _says("json, or text for a terminal.")] = LogFormat.JSON


def describe() -> dict[str, str]:
    """What each setting does, by key, for the help text and the docs."""
    schema = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    return {key: str(schema[key]["description"]) for key in field_names()}


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Settings:
    """Merge flags, environment and file into checked settings.

    Args:
        flags: Values of the flags that were given, by key (`some_name`).
        environ: The process environment.
        file: A YAML file of keys, or None.

    Raises:
        ConfigError: A key is unknown, a value is malformed, or a combination is impossible.
    """
    merged = _from_file(file) if file is not None else {}
    merged |= _from_environment(environ)
    merged |= {key: (str(value), _flag(key)) for key, value in flags.items() if value is not None}
    settings = _convert(merged)
    _check_combination(settings, {key: source for key, (_, source) in merged.items()})
    return settings


def mode_in(text: str) -> NodeMode | None:
    """The mode that a settings file of any version names, or None where it names none."""
    try:
        content: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return parse_mode(str(content.get("mode", ""))) if isinstance(content, dict) else None


def field_names() -> tuple[str, ...]:
    """Every key, in the order of the documentation."""
    return Settings.__struct_fields__


def kind_of(field: msgspec.structs.FieldInfo) -> object:
    """The type of a setting, without its description."""
    kind = field.type
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


class _Loader(yaml.SafeLoader):
    """YAML with strings as keys; a key that occurs twice is an error, because either could count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        """The mapping, or an error that names the second key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is a {key.id}{key.start_mark}")
            if key.value in seen:
                raise yaml.YAMLError(f"key {key.value!r} stands twice, again{key.start_mark}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _from_file(file: Path) -> dict[str, tuple[object, str]]:
    try:
        content: Any = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds a {type(content).__name__}, wanted keys and values")
    unknown = sorted(str(key) for key in content if key not in Settings.__struct_fields__)
    if unknown:
        known = ", ".join(field_names())
        raise ConfigError(f"{file}: unknown key {unknown[0]!r}; known keys: {known}")
    return {str(key): (value, f"{file}: {key}") for key, value in content.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    for key in field_names():
        for name in (_OWN_VARIABLES.get(key), ENVIRONMENT_PREFIX + key.upper()):
            if name is not None and environ.get(name):
                found[key] = (environ[name], name)
    return found


def _convert(merged: Mapping[str, tuple[object, str]]) -> Settings:
    """Each value by itself, so that an error names the place that it came from."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(Settings):
        if field.name not in merged:
            continue
        value, source = merged[field.name]
        try:
            given = _as_bool(value) if kind_of(field) is bool else _plain(value)
            values[field.name] = msgspec.convert(given, field.type, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            allowed = _allowed(kind_of(field))
            raise ConfigError(f"{source}: {value!r} is not valid: {allowed or error}") from error
    return Settings(**values)  # type: ignore[arg-type]  # each value was converted to its field's type


def _plain(value: object) -> object:
    # YAML reads a bare `on` or `off` as a boolean, and a bare number as a number.
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def _as_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise ValueError("wanted true or false")


def _allowed(kind: object) -> str | None:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "wanted one of " + ", ".join(str(member.value) for member in kind)
    return None


def _check_combination(settings: Settings, sources: Mapping[str, str]) -> None:
    """Each error names the places that its values came from."""
    if not settings.node_name:
        raise ConfigError("--node-name (NODE_NAME) is needed: the name of this Node object")
    try:
        check_unit(settings.mode, settings.memory_unit)
    except ConfigError as error:
        raise ConfigError(f"{sources['memory_unit']}: {error}") from error
    for one, other in (("standalone", "kubeconfig"), ("simulator_dir", "nvml_library")):
        if getattr(settings, one) and getattr(settings, other):
            both = f"{sources[one]} and {sources[other]}"
            raise ConfigError(f"{both} exclude each other: give one of them")
    _check_paths(settings, sources)


def _check_paths(settings: Settings, sources: Mapping[str, str]) -> None:
    for key in ("library_dir", "kubelet_dir", "state_dir", "run_dir", "simulator_dir"):
        value = getattr(settings, key)
        is_left_out = key == "simulator_dir" and not value
        if not is_left_out and not Path(value).is_absolute():
            raise ConfigError(f"{sources[key]}: {value!r} is not an absolute path")
    if settings.run_dir == settings.state_dir:
        raise ConfigError(
            f"--run-dir and --state-dir are both {settings.run_dir!r}: what must survive a boot and "
            f"what must not cannot lie in one directory"
        )
