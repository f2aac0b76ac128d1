"""Pods for the tests, as the objects that kubectl takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.harness.cluster.images import GPU_TEST

MEMORY = "aliyun.com/gpu-mem"
CORE = "aliyun.com/gpu-core.percentage"
COUNT = "aliyun.com/gpu-count"
# Of 16160 MiB each: tests/e2e/test_node.py.
FOUR_CARDS = {MEMORY: "60", CORE: "400", COUNT: "4"}
FOREVER = "trap 'exit 0' TERM; while :; do sleep 1; done"
TOLD = "that is all"
TELL = f"env; echo {TOLD}"  # a log comes line by line, and what is missing shows by the last one
TELL_AND_STAY = f"{TELL}; {FOREVER}"


def container(name: str, script: str = FOREVER, **more: Any) -> dict[str, Any]:
    """A container of the test image that runs a shell script."""
    start = {"name": name, "image": GPU_TEST, "imagePullPolicy": "Never"}
    return {**start, "command": ["sh", "-c", script], **more}


def slice_of(memory: int, core: int | None) -> dict[str, Any]:
    """The resources of a container that asks for a slice of a card."""
    limits = {MEMORY: str(memory)}
    if core is not None:
        limits[CORE] = str(core)
    return {"limits": limits}


def pod(name: str, *containers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod that ends when its containers end, and dies quickly when it is deleted."""
    defaults: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": list(containers),
    }
    metadata: dict[str, Any] = {"name": name, "labels": {"app": "e2e"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**defaults, **spec}}


def environment_of(log: str) -> dict[str, str]:
    """What a container that ran `TELL` printed, as a mapping; empty until it has told all."""
    told, end, _ = log.partition(f"{TOLD}\n")
    lines: Sequence[str] = [line for line in told.splitlines() if "=" in line and end]
    return dict(line.split("=", 1) for line in lines)
