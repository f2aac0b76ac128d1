"""What agents have reported as Events of their nodes, and have not said to be over."""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpu_device_plugin.apps.overview.finding import Finding, note
from gpu_device_plugin.cluster.survey_objects import Event, SurveyedNode

_COMPONENT = "gpu-device-plugin"
_IS_OVER = "Over"  # a reason with it is the Event that the fault has ended
_RECOVERED = "Recovered"
_ENDS = {
    "ModeSwitched": ("ModeSwitchRefused", "UnknownMode"),
    "UnitSwitched": ("UnitSwitchRefused",),
    "WithdrawalEnded": ("WithdrawalWaits",),
}
_TOLD = {"RunDirectoryShared"}  # nothing is wrong, and it can be better
_LABEL = re.compile(r"label ([^\s=]+)=(\S*) ")


def node_reports(events: Iterable[Event], nodes: Mapping[str, SurveyedNode]) -> Iterator[Finding]:
    """The last report of each reason.

    Args:
        events: Events about nodes, the oldest first.
        nodes: All nodes, by name; an Event outlives its node.
    """
    last: dict[tuple[str, str], Event] = {}
    for event in events:
        if event.reporter != _COMPONENT or event.about not in nodes:
            continue
        if event.type == "Warning" or event.reason in _TOLD:
            last[(event.about, event.reason)] = event
        else:
            last = {key: each for key, each in last.items() if not _ends(event, each)}
    for (node, reason), event in sorted(last.items()):
        if not _is_of_former_label(event, nodes[node]):
            text = f"node {node} reported {reason} at {event.at}: {event.message}"
            yield note(text, f"docs/troubleshooting.md, {reason}")


def _ends(good: Event, bad: Event) -> bool:
    """Whether an Event says that what another one reported is over."""
    if good.about != bad.about:
        return False
    if good.reason == _RECOVERED:
        return _card(good) == _card(bad)
    ended = _ENDS.get(good.reason, (good.reason.removesuffix(_IS_OVER),))
    return bad.reason in ended


def _card(event: Event) -> str:
    """The card's UUID, with which a report about a card begins, in brackets where it has an index."""
    return event.message.partition(": ")[0].rpartition("(")[2].rstrip(")")


def _is_of_former_label(event: Event, node: SurveyedNode) -> bool:
    """Whether it complains of a label that the node has no longer."""
    found = _LABEL.match(event.message)
    return found is not None and node.labels.get(found[1]) != found[2]
