"""Every parser of what somebody else writes: bytes in; a value or one of our errors out."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from tests.domain.words import V100_MIB, cards

from gpu_device_plugin.disk.cdi_files import CdiFiles
from gpu_device_plugin.disk.region import read_region
from gpu_device_plugin.domain.fractions.pod_annotations import hold_of, with_wish
from gpu_device_plugin.domain.fractions.resize import parse_resize, parse_resized
from gpu_device_plugin.domain.grants.holdings_annotation import held_devices, parse_holdings
from gpu_device_plugin.domain.grants.node_annotations import (
    counted_unit_mib,
    kept_pods,
    parse_offer,
    served_mode,
)
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubelet.checkpoint import parse_checkpoint
from gpu_device_plugin.kubernetes.client.foreign_text import decode, without_controls
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects import resource_claims
from gpu_device_plugin.kubernetes.objects.admission_review import read_review
from gpu_device_plugin.kubernetes.objects.extender_messages import (
    read_binding,
    read_preemption,
    read_question,
)
from gpu_device_plugin.kubernetes.objects.pod_spec import scheduled_request
from gpu_device_plugin.overview.slice_use import series, slices
from gpu_device_plugin.settings.nvidia_configuration import read_config_file

Parser = Callable[[bytes], object]


_CARDS = cards(V100_MIB, V100_MIB)


@cache
def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _file(content: bytes, name: str = "input") -> Path:
    path = _directory() / name
    path.write_bytes(content)
    return path


def _decoded(content: bytes, kind: type) -> object:
    """As an edge does it: what has not even the form is refused there."""
    try:
        return decode(msgspec.json.Decoder(kind), without_controls(content))
    except msgspec.MsgspecError as error:
        raise ClusterError(str(error)) from error


def _pod(content: bytes) -> object:
    """What a pod asks, wishes and holds, by its spec and its annotations."""
    pod = _decoded(content, Pod)
    assert isinstance(pod, Pod)
    request, annotations = scheduled_request(pod), pod.metadata.annotations or {}
    for text in annotations.values():
        held_devices(text)
    return with_wish(request, annotations), hold_of(request, annotations)


def _node(content: bytes) -> object:
    """What a node's annotation says of its cards."""
    text = content.decode("utf-8", "replace")
    kept_pods(text, "mark")
    counted_unit_mib(text)
    served_mode(text)
    offer = parse_offer("node", text, {})
    return offer, offer.devices


def _resize(content: bytes) -> object:
    """What a tenant asks of a running slice, and what stands there as the agent's answer."""
    text = content.decode("utf-8", "replace")
    return parse_resized(text) or parse_resize(text)


def _claim(content: bytes) -> object:
    found = _decoded(content, resource_claims._Claim)
    assert isinstance(found, resource_claims._Claim)
    return resource_claims._understood(found)


def _cdi(content: bytes) -> object:
    _file(content, "gpu-device-plugin-uid.json")
    return CdiFiles(_directory()).read("uid")


def _metrics(content: bytes) -> object:
    return slices(series(content.decode("utf-8", "replace")))


TARGETS: dict[str, Parser] = {
    "admission-review": lambda content: list(read_review(content).resources()),
    "cdi": _cdi,
    "checkpoint": parse_checkpoint,
    "claim": _claim,
    "extender-bind": read_binding,
    "extender-filter": read_question,
    "extender-preempt": read_preemption,
    "holdings": lambda content: parse_holdings(content.decode("utf-8", "replace"), _CARDS) or None,
    "metrics": _metrics,
    "node-cards": _node,
    "nvidia-config": lambda content: read_config_file(_file(content)),
    "pod": _pod,
    "resize": _resize,
    "region": lambda content: read_region(_file(content)),
}
"""By the folder of `corpus` with examples of it."""
