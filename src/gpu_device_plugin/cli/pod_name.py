"""A pod as a person names it: NAMESPACE/POD, or POD and a namespace beside it."""

import re
from collections.abc import Callable

from gpu_device_plugin.errors import ConfigError, NotKnownError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TYPES = frozenset({"pod", "pods", "po"})


def parse_pod(pod: str, namespace: str | None, usual: Callable[[], str]) -> tuple[str, str]:
    """Namespace and name.

    Args:
        pod: `NAMESPACE/POD` or `POD`.
        namespace: The flag `--namespace`.
        usual: The namespace where neither names one.

    Raises:
        ConfigError: They contradict each other, or are no such names.
    """
    before, slash, name = pod.rpartition("/")
    if not name or "/" in before or (slash and not before):
        raise ConfigError(f"{pod!r} is not [NAMESPACE/]POD; for instance default/cuda-sample")
    if before and namespace not in (None, before):
        raise ConfigError(f"{pod} and --namespace {namespace} name different namespaces")
    found = before or namespace or usual(), name
    for each in found:
        if _NAME.fullmatch(each) is None:
            raise ConfigError(f"{each!r} is no name that a namespace or a pod can have")
    return found


def no_such_pod(namespace: str, name: str) -> NotKnownError:
    """There is none; as `kubectl get -o name` names pods, the type was taken for the namespace."""
    hint = "; it is NAMESPACE/POD, or -n NAMESPACE POD" if namespace in _TYPES else ""
    return NotKnownError(f"no pod {namespace}/{name}, and no Event tells of one{hint}")
