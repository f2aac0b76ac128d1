"""The argument of a command that is about one pod."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_device_plugin.cli.kubeconfig_options import suggest
from gpu_device_plugin.errors import ConfigError

if TYPE_CHECKING:
    from gpu_device_plugin.domain.node.pods import PodKey

PODS = suggest("/api/v1/namespaces/{namespace}/pods")
"""Its completion."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def parse_pod(
    pod: str, namespace: str | None = None, usual: Callable[[], str] | None = None
) -> "PodKey":
    """Namespace and name of `NAMESPACE/POD`, or of `POD` beside `--namespace`.

    `usual` gives the namespace where neither names one; without it one of them has to.
    """
    before, slash, name = pod.rpartition("/")
    is_whole = slash or usual is not None
    if not name or "/" in before or (slash and not before) or not is_whole:
        form = "NAMESPACE/POD" if usual is None else "[NAMESPACE/]POD"
        raise ConfigError(f"{pod!r} is not {form}; for instance default/cuda-sample")
    if before and namespace not in (None, before):
        raise ConfigError(f"{pod} and --namespace {namespace} name different namespaces")
    found = before or namespace or (usual() if usual else ""), name
    for each in found:
        if _NAME.fullmatch(each) is None:
            raise ConfigError(f"{each!r} is no name that a namespace or a pod can have")
    return found
