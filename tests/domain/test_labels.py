"""The promise: a node's labels tell its cards in the source's words, in values Kubernetes takes."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import cards

from gpu_device_plugin.domain.node.labels import NODE_LABELS, label_value, node_labels


def test_the_sources_example() -> None:
    """R-014, R-015, R-510: `12209MiB` and `Tesla-M40`."""
    assert node_labels(cards(12209, 12209, model="Tesla M40"), "450.102.04", "11.0") == {
        "aliyun.accelerator/nvidia_count": "2",
        "aliyun.accelerator/nvidia_mem": "12209MiB",
        "aliyun.accelerator/nvidia_name": "Tesla-M40",
        "gpu-device-plugin/driver-version": "450.102.04",
        "gpu-device-plugin/cuda-version": "11.0",
        "alibabacloud.com/gpu-driver-version": "450.102.04",
    }


def test_a_mixed_node_is_described_by_its_largest_group() -> None:
    """One T4 before two V100; of equal groups the one with the lowest index."""
    t4, *v100 = cards(15079, 16160, 16160)
    mixed = [replace(t4, model="Tesla-T4"), *v100]

    largest = node_labels(mixed, "", "")
    equal = node_labels(mixed[:2][::-1], "", "")

    assert largest["aliyun.accelerator/nvidia_count"] == "2"
    assert largest["aliyun.accelerator/nvidia_mem"] == "16160MiB"
    assert equal["aliyun.accelerator/nvidia_name"] == "Tesla-T4"


def test_what_is_unknown_is_left_out() -> None:
    """No driver yet, no card: no label may say otherwise."""
    assert node_labels([], "", "") == {}
    assert set(node_labels(cards(1024), "1", "2")) == set(NODE_LABELS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("  GRID  vGPU ", "GRID-vGPU"),
        ("Quadro™ (rev. 2)", "Quadro-rev.-2"),
        ("x" * 62 + "-yz", "x" * 62),
        ("™", ""),
    ],
)
def test_a_model_becomes_a_value(text: str, value: str) -> None:
    """Spaces become hyphens, foreign characters go, 63 characters stay."""
    assert label_value(text) == value


@given(st.text())
def test_every_text_becomes_a_value_that_kubernetes_takes(text: str) -> None:
    """A refused label would hold back all the others of the same patch."""
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", label_value(text))
