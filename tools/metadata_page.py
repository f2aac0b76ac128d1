"""Writes docs/labels.md: every label and annotation, with its key, values and default from the code.

`python -m tools.metadata_page`; tests/test_docs.py checks that the page is up to date and has every key.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from gpu_device_plugin.domain.fractions import demands, pod_annotations
from gpu_device_plugin.domain.grants import holdings_annotation, node_annotations
from gpu_device_plugin.domain.models import model_catalogue, pod_admission
from gpu_device_plugin.domain.node import (
    allocation_api,
    compute_policy,
    labels,
    memory_enforcer,
    modes,
)
from gpu_device_plugin.kubernetes.client import wire
from gpu_device_plugin.kubernetes.objects import (
    leader_label,
    resource_slices,
    survey_objects,
    unhealthy_gpus,
)
from gpu_device_plugin.settings.agent_settings import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "labels.md"
AGENT, CONTROLLER, OPERATOR, TENANT, HELM = (
    "agent",
    "controller",
    "operator",
    "pod's author",
    "helm",
)
COUNTERS = "controller, kubectl gpu"
ACK_TOOLS = "agent, controller, kubectl gpu, ACK's tools"
WISH = "controller (its choice), then agent"
MODEL = "series of the [catalogue](models.md#the-catalogue)"
ASKED_KEY = "gpu-device-plugin/asked"
"""Written by the chart's policy, which has none of our constants."""

OTHERS = "NVIDIA's GPU Operator"
CHANGES = "tasks/beside-others.md#when-the-operator-changes-the-driver"
_FEATURES = "[feature labels](nvidia.md#feature-labels)"
_ALLOCATION = '`{"<container index>":{"<card>":units}}`'
_OLDER = "for older tools, of a slice on one card"


@dataclasses.dataclass(frozen=True)
class Key:
    """One row: who writes and reads it, its values, and what counts without it."""

    key: str
    writer: str
    reader: str
    values: str
    default: str = ""


def _names(kind: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in kind)


def _setting(key: str) -> str:
    found = next(field for field in dataclasses.fields(Settings) if field.name == key)
    value = "" if found.default in (None, "") else f" (`{found.default}`)"
    return f"`--{key.replace('_', '-')}`{value}"


TABLES = {
    "Labels of a Node": (
        Key(modes.MODE_LABEL, OPERATOR, "agent, pods' nodeSelector", f"{_names(modes.NodeMode)}: [modes](node-modes.md#modes)", _setting("mode")),
        Key(modes.PLACEMENT_LABEL, OPERATOR, "agent, controller", f"{_names(modes.PlacementPolicy)}: [which card](requests.md#which-card)", _setting("placement")),
        Key(modes.MAX_PODS_LABEL, OPERATOR, "agent, controller", "the most pods on a card, in the modes of fractions", "no limit; with isolation 16"),
        Key(compute_policy.COMPUTE_POLICY_KEY, OPERATOR, AGENT, f"{_names(compute_policy.ComputePolicy)}, or cGPU's number 3, 1 or 2, 5", _setting("compute_policy")),
        Key(memory_enforcer.MEMORY_ENFORCER_LABEL, OPERATOR, AGENT, "`library`, `auto`, `driver`: [who refuses memory](operations/memory-limits.md) above a slice", f"{_setting('memory_enforcer')}; `library` in the chart"),
        Key(allocation_api.ALLOCATION_API_LABEL, OPERATOR, "agent; on a Namespace the chart's policies", f"{_names(allocation_api.AllocationApi)}: [claims](dra.md)", _setting("allocation_api")),
        Key(modes.SETTINGS_LABEL, OPERATOR, AGENT, "a name in `nodeSettings.map` ([settings by node](install.md#settings-by-node))", "the settings of all nodes"),
        Key(modes.MIG_PROFILE_LABEL, OPERATOR, AGENT, "a [MIG profile](nvidia.md#one-profile-for-a-whole-node)", _setting("mig_profile")),
        Key("nvidia.com/device-plugin.config", OPERATOR, AGENT, "one of [NVIDIA's configuration files](nvidia.md#several-configurations-one-chosen-by-label)", _setting("default_config")),
        Key(labels.COUNT_LABEL, AGENT, "ACK's tools", "number of cards; if they differ, of the largest group of equal ones"),
        Key(labels.MEMORY_LABEL, AGENT, "ACK's tools", "memory of one of them, `16160MiB`"),
        Key(labels.NAME_LABEL, AGENT, "ACK's tools", "model, `Tesla-V100-SXM2-16GB`"),
        Key(labels.DRIVER_LABEL, AGENT, "people", "`535.309.01`"),
        Key(labels.CUDA_LABEL, AGENT, "people", "`12.2`"),
        Key(labels.ACS_DRIVER_LABEL, AGENT, "kube-scheduler, for pods that [ask](models.md)", "`535.309.01`"),
        Key(model_catalogue.MODEL_LABEL, "controller; an operator's value stays", "kube-scheduler, for pods that ask", MODEL),
        Key(labels.CLIENT_LABEL, OTHERS, "the chart's DaemonSets, kubectl gpu", f"they leave a node with `false` or `paused-for-…`: [driver changes]({CHANGES})"),
        Key(labels.UPGRADE_STATE_LABEL, OTHERS, AGENT, f"states of the [driver's upgrade]({CHANGES})"),
        Key("nvidia.com/…", "agent, with `--gfd on`", "NVIDIA's tools", _FEATURES),
    ),
    "Annotations of a Node": (
        Key(node_annotations.CARDS_ANNOTATION, AGENT, COUNTERS, "the cards as JSON: mode, unit, and of each card index, uuid, model, memory, units, health; version 2, for cards that are cut or replicated, has `instances` and `replicas` too; a card that [claims](dra.md#observability) give has `allocation_api` and `claimed`, an unhealthy card has `fault`: why and since when; `older_configuration` says why NVIDIA's file is not the one in force"),
        Key(holdings_annotation.HOLDINGS_ANNOTATION, AGENT, COUNTERS, "what pods hold, as JSON: `cards` (UUIDs of cards and instances), and `pods` by uid with `slices` (place in `cards`: units and percent), `devices` (places), `exclusive`, `claims`; at most 64 KiB. It counts before the pods' own annotations, which their tenants can write"),
        Key(labels.FEATURES_ANNOTATION, AGENT, AGENT, f"which {_FEATURES} the agent wrote, without `nvidia.com/`"),
        Key(model_catalogue.SERIES_ANNOTATION, CONTROLLER, CONTROLLER, "the series that the controller wrote into the label"),
        Key(node_annotations.TAINT_ANNOTATION, AGENT, AGENT, "key of the [startup taint](tasks/beside-others.md#karpenter) that it removed; it removes none again"),
        Key(node_annotations.UNINSTALL_ANNOTATION, "helm's hook", AGENT, "uid of the DaemonSet whose agents withdraw"),
        Key(node_annotations.WITHDRAWN_ANNOTATION, AGENT, "helm's hook", "how far that has come, as JSON: pods that keep their slices"),
    ),
    "Labels of a pod": (
        Key(demands.COUNT_LABEL, TENANT, "agent, controller", "over how many cards each request is divided", "1"),
        Key(demands.CARD_LABEL, TENANT, "agent, controller", "`require-whole-device`: no other pod on its cards"),
        Key(model_catalogue.MODEL_LABEL, TENANT, "controller's webhook", MODEL),
        Key(labels.ACS_DRIVER_LABEL, TENANT, "controller's webhook", "a driver of the series", "the series' default"),
        Key(pod_admission.CLASS_LABEL, TENANT, "controller's webhook", f"{_names((*pod_admission.GPU_CLASSES, *pod_admission.OTHER_CLASSES))}: [classes](models.md)"),
        Key(leader_label.LEADER_LABEL, CONTROLLER, "the controller's Service", "`true` on the replica that answers kube-scheduler"),
        Key(survey_objects.SCHEDULER_LABEL, HELM, "kubectl gpu", "on the chart's kube-scheduler: the `schedulerName` that it serves"),
        Key(survey_objects.NAMES_SCHEDULER_LABEL, HELM, "kubectl gpu", "on the controller, before Kubernetes 1.36: the `schedulerName` that its webhook gives new pods"),
    ),
    "Annotations of a pod": (
        Key(modes.PLACEMENT_ANNOTATION, TENANT, "agent, controller", _names(modes.PlacementPolicy), "its node's"),
        Key(compute_policy.COMPUTE_POLICY_KEY, TENANT, "agent, with `--honor-pod-compute-policy`", "as on a Node", "its node's"),
        Key(pod_annotations.ALLOCATION, WISH, ACK_TOOLS, _ALLOCATION),
        Key(pod_annotations.CORE_ALLOCATION, WISH, ACK_TOOLS, "the same for percent of compute"),
        Key(pod_annotations.ASSIGNED, WISH, ACK_TOOLS, "`true` where the agent has given the slice, `false` where a scheduler has chosen the card"),
        Key(pod_annotations.ASSUME_TIME, WISH, ACK_TOOLS, "when, in ns since 1970"),
        Key(pod_annotations.INIT_ALLOCATION, AGENT, COUNTERS, "the same for `spec.initContainers`, sidecars among them"),
        Key("`, `".join(pod_annotations.FIRST_GENERATION), WISH, ACK_TOOLS, _OLDER),
        Key(holdings_annotation.DEVICES_ANNOTATION, AGENT, COUNTERS, "container index -> UUIDs of whole cards, replicas and instances"),
        Key(pod_annotations.RESIZE, TENANT, AGENT, "what containers shall have from now on: `main=mem:4,core:50,within:60s`, with `;` between them", "as it is"),
        Key(pod_annotations.RESIZED, AGENT, "kubectl gpu", "what they have now, and what a resize waits for, as JSON"),
        Key(wire.ACCESS_ANNOTATION, HELM, "NVIDIA's NRI plugin, kubectl gpu", "on the agent's pods: all cards, [without a RuntimeClass](install.md#without-a-runtimeclass)"),
        Key(ASKED_KEY, "the chart's policy", "people", "what a pod asked before its limits became [claims](dra.md#what-happens-to-a-pod)"),
    ),
    "On other objects": (
        Key(unhealthy_gpus.WRITTEN, CONTROLLER, "agent, controller", "on ConfigMaps of kube-system that [ACK's scheduler reads](controller.md#cards-that-are-out): which card indexes are the controller's; as a label, `controller`: it follows them"),
        Key(pod_annotations.GROWTH, OPERATOR, AGENT, "on a namespace: what its slices may have beyond their requests on each node, `mem:8,core:100`", "nothing"),
        Key(resource_slices._CONTENT, AGENT, AGENT, "on a ResourceSlice: digest of its content"),
        Key("gpu-device-plugin/upgrades-from", HELM, "helm's hook", "in Chart.yaml: the oldest release that this one upgrades"),
    ),
}  # fmt: skip


def text() -> str:
    """The whole page."""
    parts = [
        "# Labels and annotations\n\nFor operators and authors of pods. Written by `python -m tools.metadata_page`; keys, values and defaults are the code's.\n"
        "The agent undoes changes that others make to what it writes.\n"
    ]
    for heading, rows in TABLES.items():
        parts.append(f"\n## {heading}\n\n| key | written by | read by | values | without it |\n")
        parts.append("|---|---|---|---|---|\n")
        parts += [
            f"| `{row.key}` | {row.writer} | {row.reader} | {row.values} | {row.default} |\n"
            for row in rows
        ]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
