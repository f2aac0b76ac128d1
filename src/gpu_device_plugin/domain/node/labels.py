"""What a node's labels say of its cards."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import Card

COUNT_LABEL = "aliyun.accelerator/nvidia_count"
MEMORY_LABEL = "aliyun.accelerator/nvidia_mem"
NAME_LABEL = "aliyun.accelerator/nvidia_name"
DRIVER_LABEL = "gpu-device-plugin/driver-version"
CUDA_LABEL = "gpu-device-plugin/cuda-version"
ACS_DRIVER_LABEL = "alibabacloud.com/gpu-driver-version"
"""What pods ask for by the same label (R-006)."""
NODE_LABELS = (COUNT_LABEL, MEMORY_LABEL, NAME_LABEL, DRIVER_LABEL, CUDA_LABEL, ACS_DRIVER_LABEL)
"""Every label that the agent writes; those that `node_labels` leaves out are to be removed."""

UPGRADE_STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
"""How far NVIDIA's operator is with a change of the node's driver; it writes that."""

CLIENT_LABEL = "nvidia.com/gpu.deploy.client"
"""Whether NVIDIA's operator lets pods that open cards run on the node; it writes that."""

FEATURES_ANNOTATION = "gpu-device-plugin/feature-labels"
"""On a node: which of NVIDIA's feature labels the agent wrote, without their prefix."""

_LONGEST_VALUE = 63
_FEATURE_PREFIX = "nvidia.com/"


def is_of_features(key: str) -> bool:
    """Whether it is a feature label, or the annotation that names them."""
    return key == FEATURES_ANNOTATION or key.startswith(_FEATURE_PREFIX)


def kept_away(labels: Mapping[str, str]) -> str:
    """Why the chart's agents are away from a node with these labels (docs/tasks/beside-others.md); or ""."""
    value = labels.get(CLIENT_LABEL, "")
    told = f"({CLIENT_LABEL}={value})"
    if value.startswith("paused-"):
        return f"NVIDIA's operator changes the driver or the MIG layout {told}"
    return f"NVIDIA's operator keeps pods that open cards away {told}" if value == "false" else ""


class DriverVersions(NamedTuple):
    """For instance `535.309.01` and `12.2`; empty where the driver does not tell."""

    driver: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What labels say beside the cards; `timestamp` is Unix time in seconds, None for no such label."""

    driver_version: str
    cuda_version: str
    type: str = ""
    timestamp: int | None = None


def node_labels(cards: Sequence[Card], driver_version: str, cuda_version: str) -> dict[str, str]:
    """The labels to publish (R-510); those whose value is unknown are left out.

    A node of unlike cards is described by its largest group of equal ones, of equal groups by
    the one with the lowest index. Sizes are a card's, in MiB.
    """
    driver = label_value(driver_version)
    values = {DRIVER_LABEL: driver, ACS_DRIVER_LABEL: driver, CUDA_LABEL: label_value(cuda_version)}
    if cards:
        ordered = sorted(cards, key=lambda card: card.index)
        groups = Counter((card.model, card.memory_mib) for card in ordered)
        (model, memory_mib), count = groups.most_common(1)[0]
        values |= {
            COUNT_LABEL: str(count),
            MEMORY_LABEL: f"{memory_mib}MiB",
            NAME_LABEL: label_value(model),
        }
    return {key: value for key, value in values.items() if value}


def label_value(text: str) -> str:
    """The nearest text that Kubernetes takes as a label's value; spaces become hyphens."""
    kept = re.sub(r"[^A-Za-z0-9._-]", "", re.sub(r"\s+", "-", text.strip()))
    return kept.strip("._-")[:_LONGEST_VALUE].strip("._-")


def named_features(labels: Iterable[str]) -> str:
    """The value of `FEATURES_ANNOTATION`.

    >>> named_features(["nvidia.com/gpu.count", "nvidia.com/cuda.driver.major"])
    'cuda.driver.major,gpu.count'
    """
    return ",".join(sorted(label.removeprefix(_FEATURE_PREFIX) for label in labels))


def listed_features(text: str) -> frozenset[str]:
    """The labels that `FEATURES_ANNOTATION` names.

    >>> sorted(listed_features("gpu.count,mig.capable"))
    ['nvidia.com/gpu.count', 'nvidia.com/mig.capable']
    """
    return frozenset(f"{_FEATURE_PREFIX}{name}" for name in text.split(",") if name)
