"""What the operator decides for a controller."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.setting import LogFormat, LogLevel, load, setting

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Translation(enum.Enum):
    """Whether another project's names for parts of a card are understood, and in which unit."""

    OFF = "off"
    GIB = MemoryUnit.GIB.value
    MIB128 = MemoryUnit.MIB128.value

    @property
    def unit(self) -> MemoryUnit | None:
        return None if self is Translation.OFF else MemoryUnit(self.value)


class FilterKeeps(enum.Enum):
    """Which of the nodes that fit the answer to `filter` keeps."""

    AUTO = "auto"
    BEST = "best"
    ALL = "all"


class UnhealthyConfigMaps(enum.Enum):
    """What the controller does with the ConfigMaps of unhealthy cards."""

    WRITE = "write"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What the operator decided. A pod's annotation or a node's label takes precedence."""

    HEADING: ClassVar = "The controller"

    address: str = setting(":8443", "Address on which kube-scheduler calls it.")
    plain_http: bool = setting(False, "Serve HTTP without TLS; only on a loopback address.")
    tls_cert_file: str = setting(
        "",
        "Serving certificate, PEM; by default the controller makes one and keeps it in a Secret.",
    )
    tls_key_file: str = setting("", "Its private key, PEM.")
    client_ca_file: str = setting(
        "", "CA that signs kube-scheduler's client certificate, PEM; needed with --tls-cert-file."
    )
    client_name: str = setting(
        "gpu-device-plugin-scheduler",
        "Common name of kube-scheduler's client certificate.",
        bounds={"pattern": "^[ -~]{1,64}$"},
        value="tls.clientName",
    )
    tls_names: str = setting(
        "localhost,127.0.0.1",
        "DNS names and IP addresses of a certificate that it makes, separated by commas.",
        bounds={"pattern": "^[ -~]*$"},
    )
    namespace: str = setting(
        "kube-system", "Namespace of its Secret and its Lease. Also POD_NAMESPACE.", "POD_NAMESPACE"
    )
    pod_name: str = setting(
        "", "Name of this pod, for the Lease and the leader's label. Also POD_NAME.", "POD_NAME"
    )
    webhook_configuration: str = setting(
        "", "MutatingWebhookConfiguration whose caBundle it keeps up to date."
    )
    name_scheduler: str = setting(
        "",
        "Scheduler's name that /name-scheduler gives every pod it is asked about; by default it is not served.",
        bounds={"pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"},
    )
    webhook_client_name: str = setting(
        "",
        "Common name of the API server's client certificate, which the webhook then wants.",
        bounds={"pattern": "^[ -~]{0,64}$"},
        value="webhook.clientName",
    )
    webhook_client_ca_file: str = setting(
        "", "CA that signs it, PEM; by default the one of kube-scheduler's certificate."
    )
    kubeconfig: str = setting(
        "", "Path of a kubeconfig; by default the pod's service account is used.", "KUBECONFIG"
    )
    placement: PlacementPolicy = setting(
        PlacementPolicy.BINPACK, "Placement policy, if neither the pod nor the node names another."
    )
    filter_keeps: FilterKeeps = setting(
        FilterKeeps.AUTO,
        "Keep the best eight of the nodes that fit, or all; auto: all where the pod's spec has preferences of its own.",
    )
    unhealthy_configmaps: UnhealthyConfigMaps = setting(
        UnhealthyConfigMaps.WRITE,
        "ConfigMaps kube-system/unhealthy-gpu-NODE: update them by the cards' health, or leave them alone.",
    )
    models: bool = setting(
        False,
        "Serve /mutate and label nodes with the series of their cards, by the catalogue and the profile.",
    )
    model_optional: bool = setting(False, "Admit pods of compute class gpu that ask for no model.")
    koordinator: Translation = setting(
        Translation.OFF,
        "Translate koordinator.sh/gpu-memory, gpu-memory-ratio, gpu-core and gpu.shared, with memory in units of this size; or off.",
    )
    hami: Translation = setting(
        Translation.OFF,
        "Translate nvidia.com/gpumem, gpumem-percentage and gpucores, with memory in units of this size; or off.",
    )
    max_body: int = setting(
        96,
        "Largest question of kube-scheduler in MiB; a larger one is answered with 413. All at a time may have as much.",
        bounds={"ge": 1},
    )
    metrics_address: str = setting(":9446", "Address of /metrics, /healthz and /readyz.")
    log_level: LogLevel = setting(LogLevel.INFO, "The least severe log lines that are written.")
    log_format: LogFormat = setting(LogFormat.JSON, "Format of log lines; text is for a terminal.")


def load_controller_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> ControllerSettings:
    """Merge flags, environment and file into checked settings; see `setting.load`."""
    settings, _ = load(ControllerSettings, flags, environ, file)
    files = (settings.tls_cert_file, settings.tls_key_file, settings.client_ca_file)
    if settings.plain_http and any(files):
        raise ConfigError(
            "--plain-http excludes --tls-cert-file, --tls-key-file and --client-ca-file"
        )
    host = settings.address.rpartition(":")[0].strip("[]")
    if settings.plain_http and host not in _LOOPBACK:
        raise ConfigError(
            f"--plain-http with --address {settings.address!r}: anybody who reaches it can bind pods; "
            f"give an address of this machine alone ({', '.join(_LOOPBACK)}), or use TLS"
        )
    if any(files) and not all(files):
        raise ConfigError(
            "--tls-cert-file, --tls-key-file and --client-ca-file go together: "
            "a certificate, its key, and who signs kube-scheduler's certificate"
        )
    if settings.webhook_client_ca_file and not settings.webhook_client_name:
        raise ConfigError(
            "--webhook-client-ca-file needs --webhook-client-name: such a CA signs for others too"
        )
    return settings
