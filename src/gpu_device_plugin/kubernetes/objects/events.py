"""Kubernetes Events about our node, its pods and ConfigMaps, written in the background."""

import asyncio
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from gpu_device_plugin.domain.node.pods import ObjectRef, PodRef
from gpu_device_plugin.errors import ClusterError, shorten
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request

_log = structlog.get_logger(__name__)
COMPONENT = "gpu-device-plugin"
_MAX_WAITING = 256
_MAX_WRITTEN = 512
_BURST = 50
_PER_SECOND = 5.0


@dataclass(frozen=True, slots=True)
class ConfigMapRef(ObjectRef):
    """Which ConfigMap."""


@dataclass(frozen=True, slots=True)
class EventNote:
    """Something that a person should see in `kubectl describe`.

    Attributes:
        about: The pod or the ConfigMap; None is the node.
        text: What happened, in at most 1024 bytes; what is longer is cut.
        owner: The controller that made the pod, or "". One that makes pod after pod must not keep
            others' Events from being written.
    """

    about: PodRef | ConfigMapRef | None
    reason: str
    text: str
    is_warning: bool = True
    owner: str = ""

    @property
    def source(self) -> str:
        """The name under which notes queue, so that no owner, pod or node keeps others waiting."""
        return self.owner or str(self.about or "")

    @property
    def namespace(self) -> str:
        """The namespace of what it is about; empty for the node."""
        return self.about.namespace if self.about else ""


@dataclass(frozen=True, slots=True)
class _Count:
    """How often a note was posted, and when first and last (wall clock)."""

    count: int
    first_seconds: float
    last_seconds: float

    def plus(self, other: "_Count") -> "_Count":
        """Both together; `other` is the later one."""
        return _Count(self.count + other.count, self.first_seconds, other.last_seconds)


@dataclass(eq=False)
class Events:
    """A bounded queue of notes; the same note again raises the count of its Event.

    The namespace with the fewest waiting notes comes first, and in it the owner with the fewest. If
    there are too many, the oldest note of the one with the most is dropped, so that a flood from one
    does not affect the others: a tenant can name as many owners as it likes.
    """

    api: ApiServer
    node_name: str
    api_uid: Callable[[PodRef], str] = lambda ref: ref.uid
    on_drop: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._waiting: OrderedDict[EventNote, _Count] = OrderedDict()
        self._written: OrderedDict[EventNote, tuple[str, _Count]] = OrderedDict()
        self._wake = asyncio.Event()
        self._allowance = float(_BURST)
        self._allowed_at = 0.0

    def post(self, note: EventNote) -> None:
        """Write `note` when possible; returns at once."""
        note = replace(note, text=shorten(note.text))
        now = time.time()
        once = _Count(1, now, now)
        waiting = self._waiting.get(note)
        self._waiting[note] = waiting.plus(once) if waiting else once
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[max(self._waiting, key=self._crowd())]
            self.on_drop()
        self._wake.set()

    async def run(self) -> None:
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            await self._spend()
            note = min(self._waiting, key=self._crowd())
            count = self._waiting.pop(note)
            try:
                await self._write(note, count)
            except ClusterError as error:
                _log.debug("event waits", reason=note.reason, error=str(error))
                later = self._waiting.pop(note, None)
                self._waiting[note] = count.plus(later) if later else count
                self._waiting.move_to_end(note, last=False)
                if not self.api.availability.is_away:
                    await asyncio.sleep(self.api.availability.pace.pause(1))

    def _crowd(self) -> Callable[[EventNote], tuple[int, int]]:
        """How many notes wait beside one, of its namespace and of its owner."""
        spaces = Counter(note.namespace for note in self._waiting)
        sources = Counter(note.source for note in self._waiting)
        return lambda note: (spaces[note.namespace], sources[note.source])

    async def _spend(self) -> None:
        """Wait for the right to write one more: a burst, then a few a second."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._allowed_at) * _PER_SECOND
        self._allowance = min(float(_BURST), self._allowance + earned) - 1
        self._allowed_at = now
        if self._allowance < 0:
            await asyncio.sleep(-self._allowance / _PER_SECOND)

    async def _write(self, note: EventNote, count: _Count) -> None:
        if note in self._written:
            name, before = self._written.pop(note)
            count = before.plus(count)
            answer = await self.api.call_in_turn(self._repeat(note, name, count))
            if answer.is_success:
                self._written[note] = (name, count)
                return
        name = self._name(note, count)
        answer = await self.api.call_in_turn(self._first(note, name, count))
        # 409: it was written, and the answer was lost.
        if answer.is_success or answer.status == 409:
            self._written[note] = (name, count)
            while len(self._written) > _MAX_WRITTEN:
                self._written.popitem(last=False)
        else:
            self._refused(note, answer)

    def _refused(self, note: EventNote, answer: Answer) -> None:
        if answer.status >= 500:
            raise ClusterError(f"event {note.reason}: {answer.text}")
        self.on_drop()  # for instance because the namespace is being deleted
        _log.warning("event refused", reason=note.reason, text=note.text, error=answer.text)

    def _repeat(self, note: EventNote, name: str, count: _Count) -> Request:
        body = {"count": count.count, "lastTimestamp": time_stamp(count.last_seconds)}
        return Request("PATCH", f"{self._path(note)}/{name}", body=body)

    def _name(self, note: EventNote, count: _Count) -> str:
        """Unique, and the same when a write is tried again."""
        target = self.node_name if note.about is None else note.about.name
        text = zlib.crc32(f"{note.reason} {note.text}".encode())
        return f"{target[:200].rstrip('.-')}.{int(count.first_seconds * 1e6):x}{text:08x}"

    def _first(self, note: EventNote, name: str, count: _Count) -> Request:
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace or "default"},
            "involvedObject": self._involved(note),
            "reason": note.reason,
            "message": note.text,
            "type": "Warning" if note.is_warning else "Normal",
            "count": count.count,
            "firstTimestamp": time_stamp(count.first_seconds),
            "lastTimestamp": time_stamp(count.last_seconds),
            "source": {"component": COMPONENT, "host": self.node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node_name,
        }
        return Request("POST", self._path(note), body=body)

    def _involved(self, note: EventNote) -> dict[str, str]:
        if note.about is None:
            # As the kubelet does: `kubectl describe node` looks for the name as the uid.
            return {"kind": "Node", "name": self.node_name, "uid": self.node_name}
        about = note.about
        return {
            "apiVersion": "v1",
            "kind": "Pod" if isinstance(about, PodRef) else "ConfigMap",
            "namespace": about.namespace,
            "name": about.name,
            "uid": self.api_uid(about) if isinstance(about, PodRef) else about.uid,
        }

    def _path(self, note: EventNote) -> str:
        return f"/api/v1/namespaces/{note.namespace or 'default'}/events"


def time_stamp(seconds: float) -> str:
    """Seconds of the wall clock as the API server writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
