"""The chart's hooks of uninstalling: `uninstall` before the agents are removed, `clear-nodes` after.

Only the agents know what running containers mount, so `uninstall` marks the nodes and waits until
every agent has withdrawn. The mark and the agent's answer stay until no agent runs, because an agent
whose mark is gone serves again. So `clear-nodes` removes them after the agents.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.grants.holdings_annotation import HOLDINGS_ANNOTATION
from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    TAINT_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
    kept_pods,
)
from gpu_device_plugin.domain.models.model_catalogue import (
    MODEL_LABEL,
    SERIES_ANNOTATION,
    NodeMetadataChange,
    withdrawn_series,
)
from gpu_device_plugin.domain.node.labels import FEATURES_ANNOTATION, NODE_LABELS, listed_features
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import AccessError, ClusterError, ConfigError, WrongServerError
from gpu_device_plugin.kubernetes.client.wire import Node
from gpu_device_plugin.kubernetes.objects.fleet import Fleet
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode
from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import NAMESPACE, WRITTEN, WRITTEN_BY

DENIALS = 3
SILENT_SECONDS = 60.0


@dataclass(eq=False)
class RetryPolicy:
    """Looks again and again, and decides after each failure whether to go on.

    Never where the server's name is unknown or its certificate not trusted. `DENIALS` times where we
    may not, because a right that was granted a moment ago takes effect a moment later. For
    `SILENT_SECONDS` where the server has never answered, long enough for one that restarts. As
    long as the caller likes where it did answer.
    """

    tell: Callable[[str], None]
    silent_seconds: float = SILENT_SECONDS
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.trouble = ""
        self._began = self.clock()
        self._denials = 0
        self._has_answered = False

    async def repeat(self, look: Callable[[], Awaitable[bool]], pause_seconds: float) -> None:
        """Look again and again until it returns true. ClusterError: trying again makes no sense."""
        is_over = False
        while not is_over:
            try:
                is_over = await look()
                self.trouble, self._denials, self._has_answered = "", 0, True
            except ClusterError as error:
                self._check_again(error)
                self.trouble = str(error)
            if not is_over:
                await asyncio.sleep(pause_seconds)

    def _check_again(self, error: ClusterError) -> None:
        """Return if trying again makes sense, after saying so once. ClusterError: it does not."""
        if isinstance(error, WrongServerError):
            raise error
        if isinstance(error, AccessError):
            self._denials += 1
            if self._denials >= DENIALS:
                raise error
            return
        silent = self.clock() - self._began
        if not self._has_answered and silent >= self.silent_seconds:
            raise ClusterError(f"gave up after {silent:.0f} s: {error}") from error
        if str(error) != self.trouble:
            bound = "" if self._has_answered else f" for {self.silent_seconds:g} s"
            self.tell(f"the API server does not answer properly, trying again{bound}: {error}")


LOOK_SECONDS = 2.0
_AGENTS = (
    CARDS_ANNOTATION,
    FEATURES_ANNOTATION,
    HOLDINGS_ANNOTATION,
    TAINT_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
)


def leftovers(node: SurveyedNode, installations: Collection[str]) -> NodeMetadataChange:
    """What to remove of a node on which no agent runs.

    `installations` are uids of the DaemonSets of agents that exist. The agents of one may come back
    to this node, unless its mark is of an installation that is gone.
    """
    mark = node.annotations.get(UNINSTALL_ANNOTATION)
    if installations and (mark is None or mark in installations):
        return NodeMetadataChange()
    series = withdrawn_series(node.labels.get(MODEL_LABEL), node.annotations.get(SERIES_ANNOTATION))
    # An agent removes its labels before its annotation of cards: without it they are somebody else's.
    labels = NODE_LABELS if CARDS_ANNOTATION in node.annotations else ()
    labels = (*labels, *listed_features(node.annotations.get(FEATURES_ANNOTATION, "")))
    return NodeMetadataChange(
        {**series.labels, **{key: None for key in labels if key in node.labels}},
        {**series.annotations, **{key: None for key in _AGENTS if key in node.annotations}},
    )


def left_by_controller(namespace: str, daemonset: str) -> str:
    """What a controller of this installation made and nobody removes, with the commands for it.

    The hook has no right to: it could then remove objects of others too.
    """
    return (
        "if there was a controller, this is left of it:\n"
        f"  kubectl -n {namespace} delete secret gpu-device-plugin-tls  # has the key of its CA\n"
        f"  kubectl -n {namespace} delete lease gpu-device-plugin-controller {daemonset}-scheduler\n"
        f"  kubectl -n {NAMESPACE} delete configmap -l {WRITTEN}={WRITTEN_BY}  # operators' entries too"
    )


async def clear_nodes(
    survey: Survey,
    fleet: Fleet,
    deadline_seconds: float,
    tell: Callable[[str], None],
    look_seconds: float = LOOK_SECONDS,
) -> Sequence[str]:
    """Wait until the agents have ended, then remove what they left; the nodes that changed.

    ClusterError: An agent still runs at the deadline, or the API server does not serve us.
    """
    left = "the API server does not say whether agents still run"

    async def have_ended() -> bool:
        nonlocal left
        left = ", ".join(await _find_remaining(survey, fleet))
        return not left

    retries = RetryPolicy(tell)
    try:
        async with asyncio.timeout(deadline_seconds):
            await retries.repeat(have_ended, look_seconds)
    except TimeoutError as error:
        raise ClusterError(
            f"the agents have not ended within {deadline_seconds:g} s: {retries.trouble or left}. An "
            f"agent without its mark would serve again, so nothing was removed; run "
            f"`gpu-device-plugin clear-nodes` when they have"
        ) from error
    return await _clear(survey, fleet)


async def _clear(survey: Survey, fleet: Fleet) -> Sequence[str]:
    sets, pods = await asyncio.gather(survey.agent_sets(), survey.pods())
    served = {pod.spec.node_name for pod in pods if pod.agent is not None}
    installations = frozenset(each.metadata.uid for each in sets)
    cleared = []
    for node in await survey.nodes():
        change = leftovers(node, installations)
        if node.metadata.name not in served and (change.labels or change.annotations):
            await fleet.change(node.metadata.name, change.labels, change.annotations)
            cleared.append(node.metadata.name)
    return cleared


async def _find_remaining(survey: Survey, fleet: Fleet) -> Sequence[str]:
    """This installation's DaemonSet, or the pods that an earlier one left to be ended."""
    if await fleet.installation() is not None:
        return (f"DaemonSet {fleet}",)
    sets, pods = await asyncio.gather(survey.agent_sets(), survey.pods())
    installations = {each.metadata.uid for each in sets}
    return [
        f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        for pod in pods
        if pod.agent is not None
        and pod.metadata.owner_uid
        and pod.metadata.owner_uid not in installations
    ]


_AT_ONCE = 8
"""Concurrent requests to the API server, because a large cluster has many nodes."""


@dataclass(eq=False)
class Uninstall:
    """One run over all nodes that have an agent."""

    fleet: Fleet
    tell: Callable[[str], None]
    look_seconds: float = LOOK_SECONDS
    silent_seconds: float = SILENT_SECONDS
    needs_agents: bool = False
    """Whether a DaemonSet that is not there is an error: a person may have misspelled its name."""

    def __post_init__(self) -> None:
        self._done: dict[str, tuple[str, ...]] = {}
        self._waiting: Mapping[str, str] = {}
        self._retries = RetryPolicy(self.tell, self.silent_seconds)

    async def run(self, deadline_seconds: float) -> None:
        """Return when every agent has withdrawn, or its node is gone.

        Raises:
            ClusterError: Not all did so in time; the text names the nodes and what to do.
            AccessError: There is no usable kubeconfig, it has not the rights, or its server is unknown.
            ConfigError: There is no such DaemonSet, and one is needed.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._retries.repeat(self._look, self.look_seconds)
        except TimeoutError as error:
            raise ClusterError(self._timeout_text(deadline_seconds)) from error
        self._summarise()

    async def _look(self) -> bool:
        installation = await self.fleet.installation()
        if installation is None:
            return self._without_agents()
        agents = await self.fleet.agents(installation)
        first = not self._waiting and not self._done
        self._waiting = {node: pod for node, pod in agents.items() if node not in self._done}
        if first:
            self.tell(f"asking {count_noun(len(agents), 'node')} to withdraw")
        gate = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._ask(gate, node, installation) for node in self._waiting))
        self._waiting = {n: pod for n, pod in self._waiting.items() if n not in self._done}
        return not self._waiting

    def _without_agents(self) -> bool:
        missing = f"there is no DaemonSet {self.fleet}: no node to ask"
        if self.needs_agents:
            raise ConfigError(f"{missing} (--namespace, --daemonset)")
        self.tell(missing)
        return True

    async def _ask(self, gate: asyncio.Semaphore, name: str, installation: str) -> None:
        async with gate:
            node = await self.fleet.node(name)
            if node is not None and node.annotations.get(UNINSTALL_ANNOTATION) != installation:
                node = await self.fleet.mark(name, installation)
        self._note(name, node, installation)

    def _note(self, name: str, node: Node | None, installation: str) -> None:
        if node is None:
            self._done[name] = ()
            self.tell(f"node {name}: gone")
            return
        kept = kept_pods(node.annotations.get(WITHDRAWN_ANNOTATION, ""), installation)
        if kept is None:
            return
        self._done[name] = kept
        stay = f"; files of running pods are kept: {', '.join(kept)}" if kept else ""
        self.tell(f"node {name}: withdrawn{stay}")

    def _summarise(self) -> None:
        pods = [pod for kept in self._done.values() for pod in kept]
        self.tell(f"withdrawn: {count_noun(len(self._done), 'node')}")
        if pods:
            self.tell(
                f"still running with a slice: {count_noun(len(pods), 'pod')}. A container that ends "
                f"cannot start again without the plugin. When no pod with a slice is left, remove the "
                f"files with `gpu-device-plugin cleanup` on the nodes"
            )

    def _timeout_text(self, deadline_seconds: float) -> str:
        if not self._waiting:
            return (
                f"within {deadline_seconds:g} s the API server did not say which nodes have agents; "
                f"{self._retries.trouble or 'it did not answer'}"
            )
        named = ", ".join(f"{node} (pod {pod})" for node, pod in sorted(self._waiting.items()))
        return (
            f"no answer within {deadline_seconds:g} s from the agents of "
            f"{count_noun(len(self._waiting), 'node')}: {named}. Check these pods, delete pods with "
            f"claims on these nodes (Event WithdrawalWaits), repair or delete the nodes, and "
            f"uninstall again; or leave "
            f"their files behind with `helm uninstall --no-hooks` and run `gpu-device-plugin "
            f"cleanup` on the nodes later. To stay installed instead, remove the marks: "
            f"`kubectl annotate nodes --all {UNINSTALL_ANNOTATION}-`"
        )
