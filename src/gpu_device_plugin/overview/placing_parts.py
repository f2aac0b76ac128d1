"""Whether what places pods with units is there: the controller's leader, and who serves the names of schedulers."""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.kubernetes.objects.agent_set import AgentSet
from gpu_device_plugin.kubernetes.objects.leader_label import LEADER_LABEL
from gpu_device_plugin.kubernetes.objects.survey_objects import (
    NAMES_SCHEDULER_LABEL,
    SCHEDULER_LABEL,
    SurveyedPod,
    container_of,
)
from gpu_device_plugin.overview.finding import Finding, logs_cure, problem
from gpu_device_plugin.overview.node_cards import asking_of

_DEFAULT = "default-scheduler"
SCHEDULER_NAME = "gpu-scheduler"
"""The chart's name for it, which waiting pods keep when it has gone."""


def placing_findings(
    pods: Sequence[SurveyedPod], agents: Sequence[AgentSet] | Sequence[SurveyedPod]
) -> Iterator[Finding]:
    """Who does not answer, and how many pods wait for it.

    Only in the namespaces of `agents` are parts of ours: anybody may give a pod our labels, or our command.
    """
    namespaces = {each.metadata.namespace for each in agents}
    alive = [pod for pod in pods if not pod.status.is_over]
    near = [pod for pod in alive if pod.metadata.namespace in namespaces]
    controllers = [pod for pod in near if container_of(pod.spec, "controller")]
    yield from _controller_findings(controllers)
    yield from _unnamed_findings(alive, controllers)
    pending = [pod for pod in alive if _waits(pod)]
    waiting = Counter(pod.spec.scheduler_name for pod in pending)
    unheard = {pod.spec.scheduler_name for pod in pending if not _is_answered(pod)}
    parts: dict[str, list[SurveyedPod]] = {}
    for pod in near:
        if name := _label(pod, SCHEDULER_LABEL):
            parts.setdefault(name, []).append(pod)
    for name in sorted(parts.keys() | unheard | (waiting.keys() & {SCHEDULER_NAME})):
        ours, number = parts.get(name, []), count_noun(waiting[name], "pod")
        if ours and not any(pod.is_ready for pod in ours):
            yield problem(
                f"scheduler {name} is not ready: new pods with slices stay Pending ({number} now)",
                f"kubectl describe pod {_names(ours)}: often its image, scheduler.image",
            )
        elif not ours:
            yield problem(
                f"nothing of the chart serves scheduler {name}, for which {number} with slices wait",
                "if nothing else serves it, delete these pods: those that their controllers make get another one",
            )


def _controller_findings(controllers: Sequence[SurveyedPod]) -> Iterator[Finding]:
    leaders = [pod for pod in controllers if _label(pod, LEADER_LABEL)]
    if controllers and not leaders:
        yield problem(
            "no controller leads: new pods with slices that our scheduler places stay Pending",
            logs_cure(_names(controllers)),
        )
    elif leaders and not any(pod.is_ready for pod in leaders):
        yield problem(
            "the controller that leads is not ready: while it runs it places pods, and its webhook does not answer",
            logs_cure(_names(leaders)),
        )


def _unnamed_findings(
    pods: Sequence[SurveyedPod], controllers: Sequence[SurveyedPod]
) -> Iterator[Finding]:
    """An API server that cannot reach the webhook says nothing, and creates the pods as they are."""
    asked = [pod for pod in controllers if pod.is_ready and _label(pod, NAMES_SCHEDULER_LABEL)]
    since = max((pod.condition("Ready").last_transition_time for pod in asked), default="")
    missed = [
        pod for pod in pods if "" < since < pod.metadata.creation_timestamp and _is_unnamed(pod)
    ]
    if missed:
        yield problem(
            f"{count_noun(len(missed), 'new pod')} with slices kept the default scheduler, "
            f"although the webhook is to give them {_label(asked[0], NAMES_SCHEDULER_LABEL)}",
            f"let the API server reach port 8443 of {_names(asked)} (firewall, overlay network), then make these pods again",
        )


def _label(pod: SurveyedPod, key: str) -> str:
    return (pod.metadata.labels or {}).get(key, "")


def _is_unnamed(pod: SurveyedPod) -> bool:
    """Whether the webhook was to name its scheduler, as the chart's conditions say."""
    owner, asking = pod.metadata.owner, asking_of(pod)
    return (
        pod.spec.scheduler_name == _DEFAULT
        and pod.metadata.namespace != "kube-system"
        and not (owner and owner.kind == "DaemonSet")
        and asking is not None
        and asking.request.asks_units
    )


def _waits(pod: SurveyedPod) -> bool:
    is_chosen = pod.spec.scheduler_name != _DEFAULT
    return is_chosen and not pod.spec.node_name and asking_of(pod) is not None


def _is_answered(pod: SurveyedPod) -> bool:
    """Whether a scheduler, or the API server for a scheduling gate, has spoken of it."""
    return bool(pod.condition("PodScheduled").status)


def _names(pods: Sequence[SurveyedPod]) -> str:
    first = pods[0].metadata
    return f"-n {first.namespace} {first.name}"
