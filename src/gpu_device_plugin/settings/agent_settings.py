"""What the operator decides for an agent: its settings, and which of them go together."""

import enum
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.domain.cards.health_values import NO_XID, XidChoice
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.claims import DRIVER
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.compute_policy import (
    KNOWN_POLICIES,
    ComputePolicy,
    parse_compute_policy,
)
from gpu_device_plugin.domain.node.memory_enforcer import EnforcerChoice, LimitBy
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy, parse_mode
from gpu_device_plugin.domain.nvidia.configuration import MigStrategy
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import ConfigError, clip
from gpu_device_plugin.settings.bounded_yaml import parse_yaml
from gpu_device_plugin.settings.nvidia_configuration import (
    Configuration,
    check_twice,
    nvidia_configuration,
)
from gpu_device_plugin.settings.nvidia_settings import NvidiaSettings
from gpu_device_plugin.settings.setting import (
    LogFormat,
    LogLevel,
    directory,
    load,
    optional_directory,
    setting,
)

CLASS_NAME = r"[a-z0-9][-a-z0-9.]*[*]?"
_CAPABILITY = "all|compat32|compute|display|graphics|ngx|utility|video"  # NVIDIA's toolkit's


class Isolation(enum.Enum):
    """Whether slices are enforced in the container."""

    ON = "on"
    OFF = "off"


def xid_choice(text: str) -> XidChoice:
    """XIDs as `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS` of NVIDIA's plugin name them.

    What is malformed names none, as there.
    """
    parts = [part.strip() for part in text.lower().split(",") if part.strip()]
    words = [part for part in parts if not (part.isascii() and part.isdecimal() and len(part) < 10)]
    return XidChoice(
        frozenset(int(part) for part in parts if part not in words),
        is_all=not {"all", "xids"}.isdisjoint(words),
        malformed=tuple(word for word in words if word not in {"all", "xids"}),
    )


def _compute_policy(text: str) -> ComputePolicy:
    if (found := parse_compute_policy(text)) is None:
        raise ConfigError(f"{clip(text)!r} is not valid; known: {KNOWN_POLICIES}")
    return found


def _class_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names of RuntimeClasses, or beginnings of names before a `*`."""
    names = tuple(text.strip() for text in texts if text.strip())
    if bad := [name for name in names if not re.fullmatch(CLASS_NAME, name)]:
        raise ConfigError(
            f"{clip(bad[0])!r} is neither a RuntimeClass's name nor a beginning and *"
        )
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(NvidiaSettings):
    """What the operator decided. A node label for a setting takes precedence."""

    HEADING: ClassVar = "The node and its agent"

    node_name: str = setting(
        "",
        "Name of this Node object; required. Also NODE_NAME, usually from the downward API.",
        "NODE_NAME",
    )
    kubeconfig: str = setting(
        "", "Path of a kubeconfig; by default the pod's service account is used.", "KUBECONFIG"
    )
    standalone: bool = setting(
        False, "Work without an API server: no labels, no Events, no pod specs."
    )
    mode: NodeMode = setting(
        NodeMode.CORE_MEM, "Node mode, if the node has no label `ack.node.gpu.schedule`."
    )
    memory_unit: MemoryUnit = setting(
        MemoryUnit.GIB,
        "Size of one aliyun.com/gpu-mem, in the whole cluster.",
        value="gpuMemoryUnit",
    )
    placement: PlacementPolicy = setting(
        PlacementPolicy.BINPACK,
        "Placement policy, if the node has no label `ack.node.gpu.placement`.",
    )
    compute_policy: ComputePolicy = setting(
        ComputePolicy.FIXED,
        "What a percentage of compute means on a card that is otherwise idle, if the node has no label `gpu-device-plugin/compute-policy`. cGPU's numbers 3, 1 or 2 and 5 mean the same.",
        convert=_compute_policy,
    )
    honor_pod_compute_policy: bool = setting(
        False,
        "Whether a pod's annotation `gpu-device-plugin/compute-policy` takes precedence over node label and setting.",
    )
    nvml_library: str = setting(
        "", "Path of libnvidia-ml.so.1; by default the dynamic loader finds it."
    )
    simulator_dir: str = setting(
        "",
        "Directory of a simulated node, for evaluation. The agent offers its cards, and containers get its driver.",
        convert=optional_directory,
    )
    isolation: Isolation = setting(
        Isolation.ON,
        "Whether containers get limits and the isolation library. If the library is missing, all cards are unhealthy.",
    )
    memory_enforcer: EnforcerChoice = setting(
        EnforcerChoice.AUTO,
        "Who refuses memory above a slice, if the node has no label `gpu-device-plugin/memory-enforcer`. `driver` is NVIDIA's (615 or later, by cgroup); a node without its proof offers no slices. `auto` uses the driver on cards where it is proven, and the library on the others. `library` never uses the driver.",
    )
    driver_limit_by: LimitBy = setting(
        LimitBy.HOOK,
        "What sets the driver's memory limit when a container starts. `hook` is gpu-limit-hook, which the agent installs. `toolkit` is NVIDIA's container toolkit (1.20.1 or later), which reads the limit from variables of the slice's CDI device.",
    )
    allocation_api: AllocationApi = setting(
        AllocationApi.DEVICE_PLUGIN,
        "The API by which pods ask for this node's cards, if it has no label `gpu-device-plugin/allocation-api`: the device plugin API (limits), or dra (ResourceClaims; Kubernetes 1.36 or later).",
    )
    cdi_dir: str = setting(
        "/var/run/cdi",
        "Directory of the container runtime's CDI files: for claims, for the driver's memory limits, and where the device list strategies `auto` and `cdi-cri` and the Event `CardsNotInCdi` look for the cards' specification. If it is empty, this node has none of these.",
        convert=optional_directory,
    )
    without_claims: bool = setting(False, "Serve no claims, whatever the node's label says.")
    driver_capabilities: str = setting(
        "compute,utility",
        "NVIDIA_DRIVER_CAPABILITIES of containers with limits: which of the driver's libraries they get. Limits do not cover what other libraries do.",
        bounds={"pattern": f"^({_CAPABILITY})(,({_CAPABILITY}))*$"},
    )
    library_dir: str = setting(
        "/usr/local/lib/gpu-device-plugin",
        "Directory on the host for the versions of the isolation library.",
        convert=directory,
    )
    sandbox_runtime_classes: tuple[str, ...] = setting(
        ("gvisor*", "runsc*", "kata*", "runv*", "firecracker*"),
        "RuntimeClasses of sandboxes. Nothing enforces a slice in a sandbox, so its pods get none. `kata*` matches every name that begins so.",
        is_list=True,
        convert=_class_names,
    )
    honor_cgpu_disable: bool = setting(
        False, "Whether CGPU_DISABLE=true in a container's own env turns its isolation off."
    )
    allow_other_plugin: bool = setting(
        False, "Serve even if another GPU device plugin serves this node's cards."
    )
    startup_taint: str = setting(
        "",
        "Key of the node's taint that the agent removes once its device lists are out; only once in a node's life.",
        bounds={"pattern": "^([A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?)?$", "max_length": 316},
    )
    recovery_seconds: float = setting(
        30,
        "Seconds without a failed probe or a new XID before a card with recovery `probe` is healthy again.",
        bounds={"ge": 1, "le": 86400},
    )
    unified_memory_reserve_mib: int = setting(
        16384,
        "MiB of the system's memory that slices do not get on cards that use it (GB10, Thor).",
        bounds={"ge": 0, "le": 1 << 24},
    )
    xid_table: str = setting(
        "", "A YAML file with rows that replace or extend the built-in table of XIDs."
    )
    disable_healthchecks: XidChoice = setting(
        NO_XID,
        "XIDs that leave their card healthy, separated by commas; `all` or `xids` for every one.",
        "DP_DISABLE_HEALTHCHECKS",
        convert=xid_choice,
    )
    enable_healthchecks: XidChoice = setting(
        NO_XID,
        "XIDs that make their card unhealthy, even if disabled above; separated by commas, or `all`.",
        "DP_ENABLE_HEALTHCHECKS",
        convert=xid_choice,
    )
    kubelet_dir: str = setting(
        "/var/lib/kubelet",
        "The kubelet's directory, which has device-plugins/ and pod-resources/.",
        convert=directory,
    )
    state_dir: str = setting(
        "/var/lib/gpu-device-plugin",
        "Directory of the state that survives reboots: grants, card numbers, health, the lock.",
        convert=directory,
    )
    run_dir: str = setting(
        "/run/gpu-device-plugin",
        "Directory of the slices' files and the admin socket; empty after a reboot.",
        convert=directory,
    )
    node_settings_dir: str = setting(
        "",
        "Directory of files `node-NAME.yaml`: settings for nodes with the label `gpu-device-plugin/settings: NAME`. They take precedence over those of `--config`.",
    )
    metrics_address: str = setting(":9445", "Address of /metrics, /healthz and /readyz.")
    log_level: LogLevel = setting(LogLevel.INFO, "The least severe log lines that are written.")
    log_format: LogFormat = setting(LogFormat.JSON, "Format of log lines; text is for a terminal.")


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
    over: Path | None = None,
) -> Settings:
    """Merge flags, environment and files into checked settings; see `setting.load`."""
    settings, sources = load(Settings, flags, environ, file, over)
    _check_combination(settings, sources)
    configuration_at_start(settings)
    check_twice(settings, sources, file)
    return settings


def kept_configuration(settings: Settings) -> Path:
    """Where the last good text of NVIDIA's configuration file is kept."""
    return Path(settings.state_dir) / "configuration"


def configuration_at_start(settings: Settings) -> Configuration:
    """NVIDIA's configuration; where its file is bad, the last good one, as if the agent had run on."""
    try:
        return nvidia_configuration(settings)
    except ConfigError:
        kept = kept_configuration(settings)
        if settings.config_file and kept.is_file():
            with suppress(ConfigError):
                return nvidia_configuration(settings, kept)
        raise


def may_take_mig(settings: Settings) -> bool:
    """Whether cards in MIG mode may serve: so by settings and file, or a label decides."""
    strategy = configuration_at_start(settings).mig_strategy
    is_chosen = bool(settings.config_file_srcdir)
    return is_chosen or settings.mode is NodeMode.MIG or strategy is not MigStrategy.NONE


def mode_in(text: str) -> NodeMode | None:
    """The mode that a settings file of any version names, or None where it names none."""
    try:
        content = parse_yaml(text)
    except ConfigError:
        return None
    return parse_mode(str(content.get("mode", ""))) if isinstance(content, dict) else None


_SOCKETS = (("run_dir", "agent.sock"), ("kubelet_dir", f"plugins_registry/{DRIVER}-reg.sock"))
"""Below each directory the socket with the longest path."""
_LONGEST_PATH = 107  # bytes, of a socket in Linux (unix(7)), as in kubelet/unix_sockets


def _check_combination(settings: Settings, sources: Mapping[str, str]) -> None:
    """Each error names the places that its values came from."""
    if not settings.node_name:
        raise ConfigError("--node-name (NODE_NAME) is needed: the name of this Node object")
    exclusive = (
        ("standalone", "kubeconfig"),
        ("simulator_dir", "nvml_library"),
        ("config_file", "config_file_srcdir"),
    )
    for one, other in exclusive:
        if getattr(settings, one) and getattr(settings, other):
            both = f"{sources[one]} and {sources[other]}"
            raise ConfigError(f"{both} exclude each other: give one of them")
    _check_paths(settings, sources)


def _check_paths(settings: Settings, sources: Mapping[str, str]) -> None:
    served = f"{settings.kubelet_dir.rstrip('/')}/device-plugins/kubelet.sock"
    if settings.kubelet_socket not in {None, "", served}:
        raise ConfigError(
            f"{sources['kubelet_socket']}: {settings.kubelet_socket!r} is not {served}: --kubelet-dir "
            f"says where the kubelet is"
        )
    for key, longest in _SOCKETS:
        size = len(os.fsencode(Path(getattr(settings, key)) / longest))
        if size > _LONGEST_PATH:
            raise ConfigError(
                f"{sources[key]}: {getattr(settings, key)!r} is too long by "
                f"{count_noun(size - _LONGEST_PATH, 'byte')}: a socket's path has at most {_LONGEST_PATH}, "
                f"and {longest} is to lie below it"
            )
    if settings.run_dir == settings.state_dir:
        raise ConfigError(
            f"--run-dir and --state-dir are both {settings.run_dir!r}: what must survive a boot and "
            f"what must not cannot lie in one directory"
        )
