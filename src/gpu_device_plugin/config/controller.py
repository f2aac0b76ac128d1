"""What the operator decides for a controller."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gpu_device_plugin.config.sources import LogFormat, load, says
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Koordinator(enum.Enum):
    """Whether Koordinator's names for parts of a card are understood, and in which unit."""

    OFF = "off"
    GIB = MemoryUnit.GIB.value
    MIB128 = MemoryUnit.MIB128.value

    @property
    def unit(self) -> MemoryUnit | None:
        """The unit, or None."""
        return None if self is Koordinator.OFF else MemoryUnit(self.value)


class UnhealthyConfigMaps(enum.Enum):
    """What the controller does with the ConfigMaps of unhealthy cards."""

    WRITE = "write"
    READ = "read"


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator decided. A pod's annotation or a node's label takes precedence."""

    address: Annotated[str, says("Address on which kube-scheduler calls it.")] = ":8443"
    plain_http: Annotated[bool, says("Serve HTTP without TLS; only on a loopback address.")] = False
    tls_cert_file: Annotated[
        str,
        says(
            "Serving certificate, PEM; by default the controller makes one and keeps it in a Secret."
        ),
    ] = ""
    tls_key_file: Annotated[str, says("Its private key, PEM.")] = ""
    client_ca_file: Annotated[
        str,
        says(
            "CA that signs kube-scheduler's client certificate, PEM; needed with --tls-cert-file."
        ),
    ] = ""
    client_name: Annotated[
        str,
        says(
            "Common name of kube-scheduler's client certificate.",
            pattern="^[ -~]{1,64}$",
        ),
    ] = "gpu-device-plugin-scheduler"
    tls_names: Annotated[
        str,
        says(
            "DNS names and IP addresses of a certificate that it makes, separated by commas.",
            pattern="^[ -~]*$",
        ),
    ] = "localhost,127.0.0.1"
    namespace: Annotated[
        str, says("Namespace of its Secret and its Lease. Also POD_NAMESPACE.")
    ] = "kube-system"
    pod_name: Annotated[
        str, says("Name of this pod, for the Lease and the leader's label. Also POD_NAME.")
    ] = ""
    webhook_configuration: Annotated[
        str, says("MutatingWebhookConfiguration whose caBundle it keeps up to date.")
    ] = ""
    webhook_client_name: Annotated[
        str,
        says(
            "Common name of the API server's client certificate, which /mutate then wants.",
            pattern="^[ -~]{0,64}$",
        ),
    ] = ""
    webhook_client_ca_file: Annotated[
        str,
        says("CA that signs it, PEM; by default the one of kube-scheduler's certificate."),
    ] = ""
    kubeconfig: Annotated[
        str, says("Path of a kubeconfig; by default the pod's service account is used.")
    ] = ""
    placement: Annotated[
        PlacementPolicy,
        says("Placement policy, if neither the pod nor the node names another."),
    ] = PlacementPolicy.BINPACK
    unhealthy_configmaps: Annotated[
        UnhealthyConfigMaps,
        says(
            "ConfigMaps kube-system/unhealthy-gpu-NODE: update them by the cards' health, or only read them."
        ),
    ] = UnhealthyConfigMaps.WRITE
    koordinator: Annotated[
        Koordinator,
        says(
            "Translate koordinator.sh/gpu-memory and gpu-core, with memory in units of this size; or off."
        ),
    ] = Koordinator.OFF
    max_body: Annotated[
        int,
        says(
            "Largest question of kube-scheduler in MiB; a larger one is answered with 413. "
            "All at a time may have as much.",
            ge=1,
        ),
    ] = 96
    metrics_address: Annotated[str, says("Address of /metrics, /healthz and /readyz.")] = ":9446"
    log_level: Annotated[
        str, says("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")
    ] = "info"
    log_format: Annotated[LogFormat, says("json, or text for a terminal.")] = LogFormat.JSON


def load_controller_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> ControllerSettings:
    """Merge flags, environment and file into checked settings; see `sources.load`.

    Raises:
        ConfigError: A key is unknown, a value is malformed, or a combination is impossible.
    """
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
