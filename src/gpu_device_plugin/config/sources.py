"""Flags, environment and file become one frozen value, or a ConfigError that names the key.

Precedence: flag, then environment, then file, then default. Every flag `--some-name` has
the environment variable `GPU_DEVICE_PLUGIN_SOME_NAME` and the key `some_name` in the file.
An unknown key in the file is an error; so is an unknown flag (the CLI sees to that). Unknown
environment variables are not: Kubernetes itself makes some with our prefix for a Service.
"""

import enum
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import yaml

from gpu_device_plugin.errors import ConfigError, clip

ENVIRONMENT_PREFIX = "GPU_DEVICE_PLUGIN_"
OWN_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "node_name": ("NODE_NAME",),
    "kubeconfig": ("KUBECONFIG",),
    "namespace": ("POD_NAMESPACE",),
    "pod_name": ("POD_NAME",),
    # As NVIDIA's plugin has them.
    "driver_root": ("NVIDIA_DRIVER_ROOT",),
    "dev_root": ("NVIDIA_DEV_ROOT",),
    "config_file": ("CONFIG_FILE",),
    "config_file_srcdir": ("CONFIG_FILE_SRCDIR",),
    "default_config": ("DEFAULT_CONFIG",),
    "fallback_strategies": ("FALLBACK_STRATEGIES",),
    "node_label": ("NODE_LABEL",),
    "mig_strategy": ("MIG_STRATEGY",),
    "mig_profile": ("MIG_PROFILE",),
    "fail_on_init_error": ("FAIL_ON_INIT_ERROR",),
    "device_list_strategy": ("DEVICE_LIST_STRATEGY",),
    "device_id_strategy": ("DEVICE_ID_STRATEGY",),
    "pass_device_specs": ("PASS_DEVICE_SPECS",),
    "shared_devices_allocation_policy": ("SHARED_DEVICES_ALLOCATION_POLICY",),
    "cdi_annotation_prefix": ("CDI_ANNOTATION_PREFIX",),
    "gdrcopy_enabled": ("GDRCOPY_ENABLED",),
    "gds_enabled": ("GDS_ENABLED",),
    "mofed_enabled": ("MOFED_ENABLED",),
    "imex_channel_ids": ("IMEX_CHANNEL_IDS",),
    "imex_required": ("IMEX_REQUIRED",),
    "mps_root": ("MPS_ROOT",),
    "disable_healthchecks": ("DP_DISABLE_HEALTHCHECKS",),
    "enable_healthchecks": ("DP_ENABLE_HEALTHCHECKS",),
    "gfd_output_file": ("GFD_OUTPUT_FILE",),
    "machine_type_file": ("GFD_MACHINE_TYPE_FILE",),
    "gfd_no_timestamp": ("GFD_NO_TIMESTAMP",),
    "device_discovery_strategy": ("DEVICE_DISCOVERY_STRATEGY",),
    "kubelet_socket": ("KUBELET_SOCKET",),
    "nvidia_cdi_hook_path": ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    "driver_root_ctr_path": ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    "cdi_feature_flags": ("CDI_FEATURE_FLAGS",),
    "cdi_disable_hooks": ("CDI_DISABLE_HOOKS",),
    "gfd_oneshot": ("GFD_ONESHOT",),
    "gfd_sleep_interval": ("GFD_SLEEP_INTERVAL",),
    "use_node_feature_api": ("GFD_USE_NODE_FEATURE_API",),
}
"""The variables of settings that have others beside that with our prefix; the first goes first."""
FLAG_ALIASES: Mapping[str, tuple[str, ...]] = {
    "driver_root": ("--nvidia-driver-root",),
    "dev_root": ("--nvidia-dev-root",),
    "nvidia_cdi_hook_path": ("--nvidia-ctk-path",),
    "driver_root_ctr_path": ("--container-driver-root",),
}
"""Further flags of a setting, as NVIDIA's plugin has them."""
REPEATED_FLAGS = frozenset(
    {
        "device_list_strategy",
        "imex_channel_ids",
        "fallback_strategies",
        "cdi_feature_flags",
        "cdi_disable_hooks",
    }
)
"""Settings that are lists: given several times, as NVIDIA's plugin allows, their values are joined."""
_MOST_NODES, _MOST_DIGITS = 10_000, 64
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", ""})


class LogFormat(enum.Enum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


def says(text: str, **bounds: Any) -> msgspec.Meta:
    """Effect of a setting, with its range."""
    return msgspec.Meta(description=text, **bounds)


Kind = TypeVar("Kind", bound=msgspec.Struct)


def describe(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What each setting does, by key, for the help text and the docs."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return {key: str(schema[key]["description"]) for key in field_names(kind)}


def load(
    kind: type[Kind],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
    over: Path | None = None,
) -> tuple[Kind, dict[str, str]]:
    """Merge flags, environment and files.

    Args:
        kind: The settings.
        flags: Values of the flags that were given, by key (`some_name`).
        environ: The process environment.
        file: A YAML file of keys, or None.
        over: Another one, which takes precedence over it.

    Returns:
        The settings, and where each value that was given came from, by key.

    Raises:
        ConfigError: A key is unknown, or a value is malformed.
    """
    merged = {
        key: value for each in (file, over) if each for key, value in _from_file(kind, each).items()
    }
    merged |= _from_environment(kind, environ)
    merged |= {key: (str(value), _flag(key)) for key, value in flags.items() if value is not None}
    return _convert(kind, merged), {key: source for key, (_, source) in merged.items()}


def field_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Every key, in the order of the documentation."""
    return kind.__struct_fields__


def kind_of(field: msgspec.structs.FieldInfo) -> object:
    """The type of a setting, without its description and without "not given"."""
    kind = field.type
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_args(kind)[0] if isinstance(kind, UnionType) else kind


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


class _Loader(yaml.SafeLoader):
    """YAML with strings as keys; a key that occurs twice is an error, because either could count.

    An alias costs a few letters and stands for all that its anchor has. So nodes count once for each
    place that they are at in the end.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The node, or an error where it would be too many."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._sizes[node] = 1 + sum(self._sizes[part] for part in _parts(node))
        elif node not in self._sizes:
            raise yaml.YAMLError("an alias stands within what it is an alias of")
        if node.tag.endswith((":int", ":float")) and len(node.value) > _MOST_DIGITS:
            raise yaml.YAMLError(f"a number of {len(node.value)} characters{node.start_mark}")
        if max(self._sizes[node], len(self._sizes)) > _MOST_NODES:
            raise yaml.YAMLError(f"more than {_MOST_NODES} values, with what aliases stand for")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        """The mapping, or an error that names the second key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is a {key.id}{key.start_mark}")
            if key.value in seen:
                raise yaml.YAMLError(f"key {clip(key.value)!r} stands twice, again{key.start_mark}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _parts(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return itertools.chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def parse_yaml(text: str) -> Any:
    """What a YAML or JSON text says.

    Raises:
        ConfigError: It is none, or a key stands twice.
    """
    # YAML has no tabs between tokens, JSON has; inside a text JSON writes them as \t.
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    try:
        return yaml.load(text.replace("\t", " ") if is_json else text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}") from error
    # What PyYAML lets through where a value does not suit its tag, as in `!!int` with nothing behind it.
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {type(error).__name__}: {error}") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file; an empty one has none.

    Raises:
        ConfigError: It cannot be read, is no YAML, or holds something else.
    """
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds a {type(content).__name__}, wanted keys and values")
    return content


def _from_file(kind: type[msgspec.Struct], file: Path) -> dict[str, tuple[object, str]]:
    content = read_yaml(file)
    unknown = sorted(str(key) for key in content if key not in kind.__struct_fields__)
    if unknown:
        known = ", ".join(field_names(kind))
        raise ConfigError(f"{file}: unknown key {clip(unknown[0])!r}; known keys: {known}")
    return {str(key): (value, f"{file}: {key}") for key, value in content.items()}


def _from_environment(
    kind: type[msgspec.Struct], environ: Mapping[str, str]
) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    for key in field_names(kind):
        names = (ENVIRONMENT_PREFIX + key.upper(), *OWN_VARIABLES.get(key, ()))
        given = next((name for name in names if environ.get(name)), None)
        if given is not None:
            found[key] = (environ[given], given)
    return found


def _convert(kind: type[Kind], merged: Mapping[str, tuple[object, str]]) -> Kind:
    """Each value by itself, so that an error names the place that it came from."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in merged:
            continue
        value, source = merged[field.name]
        try:
            if field.name in REPEATED_FLAGS and isinstance(value, list):
                value = ",".join(map(str, value))
            given = _given(value, kind_of(field))
            values[field.name] = msgspec.convert(given, field.type, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            allowed = _allowed(kind_of(field))
            raise ConfigError(f"{source}: {value!r} is not valid: {allowed or error}") from error
    return kind(**values)


def _given(value: object, kind: object) -> object:
    if kind is bool:
        return _as_bool(value)
    # YAML reads a bare `on` or `off` as a boolean, and a bare number as a number.
    if isinstance(value, bool):
        return "on" if value else "off"
    is_text = kind is str and isinstance(value, int)
    is_choice = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return str(value) if is_text or is_choice else value


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
