"""Draws the parts of the page that have changed, and hands readers those that they have not seen."""

import asyncio
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import structlog

from gpu_device_plugin.domain.node.pods import PodKey, PodRef
from gpu_device_plugin.errors import AccessError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.overview.live_cluster import UNBOUND, FollowedPod, LiveCluster
from gpu_device_plugin.overview.node_cards import ClusterCards, NodeCards
from gpu_device_plugin.overview.questions import NodesAndFacts, read_story
from gpu_device_plugin.overview.totals import (
    MOST_NAMESPACES,
    History,
    NamespaceTotal,
    held_on,
    sum_of,
    team_of,
    totals,
)
from gpu_device_plugin.overview.verdicts import NodeVerdict
from gpu_device_plugin.overview.why import AGENT, event_line
from gpu_device_plugin.page.rows import Colours, NodeRow, node_row, pod_groups, pod_row
from gpu_device_plugin.page.uses import Uses, use_lines
from gpu_device_plugin.web.html.page_server import Html, ServerSentEvent
from gpu_device_plugin.web.http_server import ReadyState

_MOST_GONE = 1000
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class _Part:
    html: str
    number: int


class PageParts:
    """Parts by their id in the page; one that is gone is empty.

    A reader is told where it is as `start-number`: `start` is of this process, and `number` grows
    with every change, which notifies `changed`.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self._start = uuid.uuid4().hex[:8]
        self._number = self._floor = 0
        self._parts: dict[str, _Part] = {}

    @property
    def at(self) -> str:
        """The place of a reader that has seen everything."""
        return f"{self._start}-{self._number}"

    def html(self, name: str) -> str:
        """A part; empty where there is none."""
        found = self._parts.get(name)
        return found.html if found else ""

    def nodes(self) -> Iterator[str]:
        names = sorted(name for name in self._parts if name.startswith("node-"))
        return (html for name in names if (html := self._parts[name].html))

    def put(self, name: str, html: str) -> bool:
        """Have this part from now on; whether it is another than before."""
        if self.html(name) == html:
            return False
        self._number += 1
        self._parts.pop(name, None)
        self._parts[name] = _Part(html, self._number)
        if not html:
            self._forget_gone()
        return True

    def since(self, at: str) -> Mapping[str, str] | None:
        """The parts that a reader at that place has not seen; None where it has to read everything again."""
        start, _, number = at.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        seen = int(number) if is_number else -1
        if start != self._start or not self._floor <= seen <= self._number:
            return None
        return {name: part.html for name, part in self._parts.items() if part.number > seen}

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait(self, at: str, seconds: float) -> None:
        """Wait until there is something to see from that place on, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(lambda: self.at != at)

    def _forget_gone(self) -> None:
        """Nodes come and go under new names; a reader that has been away for longer reads all again."""
        gone = [name for name, part in self._parts.items() if not part.html]
        for name in gone[:-_MOST_GONE]:
            self._floor = max(self._floor, self._parts.pop(name).number)


_ONCE = ("summary", "legend", "unplaced", "totals")
_LEAST_SECONDS_BETWEEN = 0.25
_MOST_SCOPES = 64
_MOST_WITHOUT_CARD = 200
_MOST_VERDICTS = 20
_MOST_IN_LEGEND = 16
_MOST_SAID = 5
_AT_ONCE = 20
_log = structlog.get_logger("page")


class Drawing:
    """The page as it is now, as readers of everything see it or those of one namespace (`scope`).

    `team_label` is the pods' label by which totals are counted too; empty for none. `is_kept` ends when nobody draws it any more.
    """

    def __init__(  # noqa: PLR0913 - what it draws from, and for whom
        self,
        api: ApiServer,
        live: LiveCluster,
        uses: Uses,
        html: Html,
        *,
        beat_seconds: float,
        scope: str = "",
        team_label: str = "",
    ) -> None:
        self.is_kept = True
        self._beat_seconds, self._scope = beat_seconds, scope
        self._api, self._live, self._uses, self._html = api, live, uses, html
        self._parts = PageParts()
        self._colours = Colours()
        self._held: dict[str, Mapping[str, NamespaceTotal]] = {}  # by node and namespace
        self._team_label = team_label
        self._by_team: dict[str, Mapping[str, NamespaceTotal]] = {}  # by node and team
        self._history, self._team_history = History(), History()
        self._is_drawn = False

    def page(self) -> Mapping[str, object]:
        """Values of `web/html/templates/page.html`, but for what the server adds; the last hour ends now."""
        self._put("totals", self._totals)
        return {
            "at": self._parts.at,
            "scope": self._scope,
            **{
                name: self._html.own(self._parts.html(name) or f'<p id="{name}"></p>')
                for name in _ONCE
            },
            "nodes": [self._html.own(part) for part in self._parts.nodes()],
            "trouble": self._trouble(),
        }

    async def events(self, at: str) -> AsyncIterator[ServerSentEvent]:
        """What a reader at that place has not seen, and what changes from then on."""
        while True:
            missing = self._parts.since(at) if self.is_kept else None
            if missing is None:
                yield ServerSentEvent("restart", {}, self._parts.at)
                return
            at = self._parts.at
            if missing:
                yield ServerSentEvent("parts", missing, at)
            age = {"trouble": self._trouble(), "seconds": round(self._live.doubt[1])}
            yield ServerSentEvent("age", age, at)
            await self._parts.wait(at, self._beat_seconds)

    async def pod(self, namespace: str, name: str) -> str | None:
        """A pod's story as HTML; None where there is no such pod."""
        if self._scope not in ("", namespace):
            return None
        story = await read_story(self._api, namespace, name, self._nodes)
        if story is None:
            return None
        verdicts: Sequence[NodeVerdict] = sorted(story.nodes, key=lambda each: not each.is_fit)
        return self._html.render(
            "pod",
            story=story,
            uses=use_lines(self._uses.of_pod(namespace, name)),
            use_hint=self._uses.trouble or "Prometheus has no figures of this pod",
            verdicts=verdicts[:_MOST_VERDICTS],
            left_out=max(0, len(verdicts) - _MOST_VERDICTS),
        )

    async def node(self, name: str) -> str | None:
        """A node's cards as HTML, with what was said of them; None where it publishes none."""
        if (row := self._row(name)) is None:
            return None
        events = () if self._scope else await Survey(self._api).events("default", "Node", name)
        said = {each.card.uuid: "" for each in row.cards}
        said |= {uuid: event_line(e) for e in events for uuid in said if uuid in e.message}
        rest = [e for e in events if e.reporter == AGENT and not any(u in e.message for u in said)]
        told = list(map(event_line, rest[-_MOST_SAID:]))
        return self._html.render("cards", node=row, said=said, rest=told)

    def readiness(self) -> ReadyState:
        return ReadyState(self._is_drawn, "ready" if self._is_drawn else self._trouble())

    def _trouble(self) -> str:
        return self._live.doubt[0] or ("" if self._is_drawn else "reading the cluster")

    async def _nodes(self) -> NodesAndFacts:
        if self._scope:
            raise AccessError(f"this page shows you namespace {self._scope} only")
        return self._live.cards(), dict(self._live.nodes)

    async def draw(self, touched: Iterable[str]) -> None:
        """Draw what has changed: these nodes, and what is about all of them."""
        has_changed = False
        for count, name in enumerate(sorted({*touched} - {UNBOUND})):
            has_changed |= self._put(f"node-{name}", partial(self._node, name))
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others are served meanwhile
        has_changed |= self._put("unplaced", self._unplaced)
        has_changed |= self._put("summary", self._summary)
        has_changed |= self._put("legend", self._legend)
        has_changed |= self._put("totals", self._totals)
        self._is_drawn = True
        if has_changed:
            await self._parts.tell()

    def _put(self, part: str, drawn: Callable[[], str]) -> bool:
        """Have this part as it is now; one that cannot be drawn says so, and the others go on."""
        try:
            html = drawn()
        except Exception:  # noqa: BLE001 - whatever one part has, the others can be drawn
            _log.exception("part not drawn", part=part)
            html = self._undrawn(part)
        return self._parts.put(part, html)

    def _undrawn(self, part: str) -> str:
        trouble, name = "this page cannot draw it, and its log says why", part.removeprefix("node-")
        if name == part:
            return self._html.render("undrawn", part=part, trouble=trouble)
        return self._html.render("node", node=NodeRow(name, trouble=trouble))

    def _node(self, name: str) -> str:
        self._held.pop(name, None)
        self._by_team.pop(name, None)
        if (row := self._row(name)) is None:
            return ""
        view = self._view(name)
        self._held[name] = held_on(view) if isinstance(view, NodeCards) else {}
        if self._team_label and isinstance(view, NodeCards):
            self._by_team[name] = held_on(view, self._team_of)
        return self._html.render("node", node=row)

    def _row(self, name: str) -> NodeRow | None:
        view, node = self._view(name), self._live.nodes.get(name)
        if view is None or node is None:
            return None
        uses = self._uses.of_slice
        return node_row(node, view, uses, self._colours, is_whole=not self._scope)

    def _view(self, name: str) -> NodeCards | str | None:
        view = self._live.view(name)
        if not self._scope:
            return view
        if not isinstance(view, NodeCards) or self._scope not in view.namespaces:
            return None
        return view.of_namespace(self._scope)

    def _unplaced(self) -> str:
        every = self._live.without_card()
        pods = [each for each in every if self._scope in ("", each.pod.metadata.namespace)]
        turns = Counter[str]()

        def turn(each: FollowedPod) -> int:
            turns[each.pod.metadata.namespace] += 1
            return turns[each.pod.metadata.namespace]

        # Some of each namespace, however many pods of another one wait.
        sent = set(sorted(pods, key=turn)[:_MOST_WITHOUT_CARD])
        shown = [pod_row(each) for each in pods if each in sent]
        return self._html.render(
            "unplaced", groups=pod_groups(shown), sent=len(shown), count=len(pods)
        )

    def _legend(self) -> str:
        names = sorted({name for names in self._held.values() for name in names})
        colours = [(name, self._colours.of(name)) for name in names]
        return self._html.render("legend", colours=colours, most=_MOST_IN_LEGEND)

    def _team_of(self, pod: PodRef) -> str:
        return team_of(self._live.labels_of(pod), self._team_label)

    def _totals(self) -> str:
        day = {"last day": lambda name: self._uses.days.get(name, "")} if self._uses.days else {}
        tables = [self._table("namespace", self._held, self._history, day)]
        if self._team_label:
            tables.append(self._table("team", self._by_team, self._team_history, {}))
        return self._html.render("totals", tables=tables)

    @staticmethod
    def _table(
        group: str,
        held: Mapping[str, Mapping[str, NamespaceTotal]],
        history: History,
        day: Mapping[str, Callable[[str], str]],
    ) -> Mapping[str, object]:
        found = totals(held.values())
        history.note(asyncio.get_running_loop().time(), found)
        shown = [*islice(found.items(), MOST_NAMESPACES)]
        pasts = {"last hour": history.line, **day}
        left = len(found) - len(shown)
        return {"group": group, "rows": shown, "pasts": pasts, "left": left, "sum": sum_of(found)}

    def _summary(self) -> str:
        cards = self._live.cards()
        if self._scope:
            own = map(self._view, sorted(self._held))
            cards = ClusterCards(tuple(view for view in own if isinstance(view, NodeCards)))
        return self._html.render(
            "summary",
            text=cards.summary if cards.names else "",
            faulty=sum(not card.is_healthy for node in cards.nodes for card in node.cards),
            use_hint=self._uses.trouble if self._uses.is_wanted else "",
        )


class Drawings:
    """The page for each scope that somebody reads: "" is everything, others are namespaces."""

    def __init__(self, live: LiveCluster, make: Callable[[str], Drawing]) -> None:
        self.all = make("")
        self._live, self._make = live, make
        self._by_scope: OrderedDict[str, Drawing] = OrderedDict()
        self._redraw: set[str] = set()

    async def of(self, scope: str) -> Drawing:
        """The page for a scope, which was drawn at least once; the one that was longest not asked for is given up."""
        if not scope:
            return self.all
        found = self._by_scope.get(scope)
        if found is None:
            found = self._by_scope[scope] = self._make(scope)
            if self._live.is_synced:
                await found.draw(self._live.nodes)
        self._by_scope.move_to_end(scope)
        while len(self._by_scope) > _MOST_SCOPES:
            _, gone = self._by_scope.popitem(last=False)
            gone.is_kept = False
        return found

    def use_changed(self, pods: Iterable[PodKey]) -> None:
        self._redraw |= self._live.nodes_of(set(pods)) | {UNBOUND}
        self._live.changed.set()

    async def run(self) -> None:
        """Draw what changes, until cancelled."""
        while True:
            await self._live.changed.wait()
            self._live.changed.clear()
            if self._live.is_synced:
                touched = self._live.take_touched() | self._redraw
                self._redraw = set()
                for drawing in (self.all, *self._by_scope.values()):
                    await drawing.draw(touched)
            await asyncio.sleep(_LEAST_SECONDS_BETWEEN)
