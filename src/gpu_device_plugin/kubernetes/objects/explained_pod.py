"""A pod as `kubectl gpu why` explains it: its containers' states, its claims, its times."""

import msgspec

from gpu_device_plugin.kubernetes.client.wire import NamedEntry
from gpu_device_plugin.kubernetes.objects.survey_objects import (
    SurveyedPod,
    SurveyedPodSpec,
    SurveyedPodStatus,
)


class StateDetails(msgspec.Struct, rename="camel"):
    """`state.waiting` or `state.terminated` of a container."""

    exit_code: int = 0  # of one that ended
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """`state` of a container."""

    waiting: StateDetails | None = None
    terminated: StateDetails | None = None


class ContainerStatus(msgspec.Struct):
    """One entry of `containerStatuses`."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)

    def __str__(self) -> str:
        """What it waits for, or how it ended; empty where it runs or ended well."""
        waiting, ended = self.state.waiting, self.state.terminated
        if waiting is not None:
            why = ": ".join(filter(None, (waiting.reason, waiting.message)))
            return f"container {self.name} waits: {why}" if why else ""
        if ended is None or not ended.exit_code:
            return ""
        reason = f" ({ended.reason})" if ended.reason else ""
        message = f": {ended.message}" if ended.message else ""
        return f"container {self.name} ended with exit code {ended.exit_code}{reason}{message}"


class ExplainedSpec(SurveyedPodSpec):
    """`spec` of the pod."""

    scheduling_gates: list[NamedEntry] | None = None


class ExplainedStatus(SurveyedPodStatus, rename="camel"):
    """`status` of the pod."""

    start_time: str | None = None
    resource_claim_statuses: list[NamedEntry] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class ExplainedPod(SurveyedPod):
    """The pod."""

    spec: ExplainedSpec = msgspec.field(default_factory=ExplainedSpec)
    status: ExplainedStatus = msgspec.field(default_factory=ExplainedStatus)

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        """What is known of its containers, init containers first."""
        status = self.status
        return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))

    @property
    def missing_claims(self) -> tuple[str, ...]:
        """Names in it of claims that kube-controller-manager has not made."""
        made = {each.name for each in self.status.resource_claim_statuses or ()}
        names = (each.name for each in self.spec.resource_claims or ())
        return tuple(name for name in names if name not in made)

    @property
    def failed_by_itself(self) -> tuple[str, ...]:
        """Containers by which it failed; empty where the kubelet refused or ended it, with a reason."""
        if self.status.phase != "Failed" or self.status.reason:
            return ()
        ended = (each for each in self.containers if each.state.terminated)
        return tuple(each.name for each in ended if str(each))
