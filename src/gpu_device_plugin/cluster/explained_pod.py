"""One pod, with the fields that say why it is where it is; of many pods they would be too much."""

import msgspec

from gpu_device_plugin.cluster.survey_objects import (
    SurveyedPod,
    SurveyedPodSpec,
    SurveyedPodStatus,
)
from gpu_device_plugin.cluster.wire import ObjectMeta


class Waiting(msgspec.Struct):
    """`state.waiting` of a container."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, rename="camel"):
    """`state.terminated` of a container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """`state` of a container."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


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


class SchedulingGate(msgspec.Struct):
    """One entry of `schedulingGates`."""

    name: str


class ExplainedMeta(ObjectMeta):
    """`metadata` of the pod."""

    deletion_timestamp: str | None = None


class ExplainedSpec(SurveyedPodSpec):
    """`spec` of the pod."""

    scheduler_name: str = "default-scheduler"
    scheduling_gates: list[SchedulingGate] | None = None


class ExplainedStatus(SurveyedPodStatus, rename="camel"):
    """`status` of the pod."""

    start_time: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class ExplainedPod(SurveyedPod):
    """The pod."""

    metadata: ExplainedMeta = msgspec.field(default_factory=ExplainedMeta)
    spec: ExplainedSpec = msgspec.field(default_factory=ExplainedSpec)
    status: ExplainedStatus = msgspec.field(default_factory=ExplainedStatus)

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        """What is known of its containers, init containers first."""
        status = self.status
        return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))

    @property
    def failed_by_itself(self) -> tuple[str, ...]:
        """Containers by which it failed; empty where the kubelet refused or ended it, with a reason."""
        if self.status.phase != "Failed" or self.status.reason:
            return ()
        ended = (each for each in self.containers if each.state.terminated)
        return tuple(each.name for each in ended if str(each))

    @property
    def is_over(self) -> bool:
        """Whether it has ended; what it held is free."""
        return self.status.phase in ("Failed", "Succeeded")
