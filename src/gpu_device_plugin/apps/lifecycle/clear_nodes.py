"""The chart's post-delete hook: what agents that are gone have left on the objects of nodes.

The mark for uninstalling and the agent's answer stay until no agent runs, because an agent whose
mark is gone serves again. So they are removed after the agents.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from gpu_device_plugin.apps.lifecycle.patience import Patience
from gpu_device_plugin.cluster.fleet import Fleet
from gpu_device_plugin.cluster.survey import Survey
from gpu_device_plugin.cluster.survey_objects import SurveyedNode
from gpu_device_plugin.domain.annotations import (
    CARDS_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
)
from gpu_device_plugin.domain.holdings import HOLDINGS_ANNOTATION
from gpu_device_plugin.domain.labels import FEATURES_ANNOTATION, NODE_LABELS, listed_features
from gpu_device_plugin.domain.models.catalogue import (
    MODEL_LABEL,
    SERIES_ANNOTATION,
    NodeChange,
    withdrawn_series,
)
from gpu_device_plugin.errors import ClusterError

LOOK_SECONDS = 2.0
_AGENTS = (
    CARDS_ANNOTATION,
    FEATURES_ANNOTATION,
    HOLDINGS_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
)


def leftovers(node: SurveyedNode, installations: Collection[str]) -> NodeChange:
    """What to remove of a node on which no agent runs.

    Args:
        node: The node.
        installations: Uids of the DaemonSets of agents that exist. The agents of one may come back
            to this node, unless its mark is of an installation that is gone.
    """
    mark = node.annotations.get(UNINSTALL_ANNOTATION)
    if installations and (mark is None or mark in installations):
        return NodeChange()
    series = withdrawn_series(node.labels.get(MODEL_LABEL), node.annotations.get(SERIES_ANNOTATION))
    # An agent removes its labels before its annotation of cards: without it they are somebody else's.
    labels = NODE_LABELS if CARDS_ANNOTATION in node.annotations else ()
    labels = (*labels, *listed_features(node.annotations.get(FEATURES_ANNOTATION, "")))
    return NodeChange(
        {**series.labels, **{key: None for key in labels if key in node.labels}},
        {**series.annotations, **{key: None for key in _AGENTS if key in node.annotations}},
    )


async def clear_nodes(
    survey: Survey,
    fleet: Fleet,
    deadline_seconds: float,
    tell: Callable[[str], None],
    look_seconds: float = LOOK_SECONDS,
) -> Sequence[str]:
    """Wait until the agents have ended, then remove what they left; the nodes that changed.

    Raises:
        ClusterError: An agent still runs at the deadline, or the API server does not serve us.
    """
    patience = Patience(tell)
    left = "the API server does not say whether agents still run"
    try:
        async with asyncio.timeout(deadline_seconds):
            while True:
                try:
                    left = ", ".join(await _still_there(survey, fleet))
                    patience.answered()
                except ClusterError as error:
                    patience.failed(error)
                    left = str(error)
                if not left:
                    break
                await asyncio.sleep(look_seconds)
    except TimeoutError as error:
        raise ClusterError(
            f"the agents have not ended within {deadline_seconds:g} s: {left}. An agent without its "
            f"mark would serve again, so nothing was removed; run `gpu-device-plugin clear-nodes` "
            f"when they have"
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


async def _still_there(survey: Survey, fleet: Fleet) -> Sequence[str]:
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
