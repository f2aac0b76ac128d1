"""Bindings: reserved, written with the chosen cards, and given back where they did not come about."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.fractions.node_fit import Misfit
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold, wish_annotations
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import (
    AccessError,
    ClusterError,
    GaveUpError,
    NotSentError,
    ThrottledError,
)
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterPod
from gpu_device_plugin.kubernetes.objects.extender_messages import binding_answer, read_binding
from gpu_device_plugin.kubernetes.objects.pod_watch import pod_path

_BIND_SECONDS = 8.0
_READ_SECONDS = 4.0
_BIND_TRIES = 3
_DOUBT_SECONDS = 60.0
_TOGETHER_SECONDS = 5.0  # doubts that come within it are settled by one list
MOST_BINDINGS = 64
"""At a time, each on a connection of its own: so many divided by the API server's time are bound in a second."""
_log = structlog.get_logger("binder")


@dataclass(frozen=True, slots=True)
class View:
    """What the rest of the controller is asked.

    Attributes:
        read: The pod by one GET within so many seconds, of which the ledger learns too.
        unbound: Uids of all pods without a node, by one list past every cache.
        standby: Why this replica may not bind now, or "".
        left_seconds: For how long no other replica can bind.
        bound: Called with how each binding ended: `bound`, `conflict`, `refused` (by NotBoundError) or
            `failed`.
    """

    read: Callable[[PodRef, float], Awaitable[ClusterPod | None]]
    unbound: Callable[[], Awaitable[Collection[str]]]
    standby: Callable[[], str]
    left_seconds: Callable[[], float]
    bound: Callable[[str], None]


@dataclass(slots=True)
class _Doubt:
    """A binding without an answer."""

    node: str
    hold: PodHold
    until: float  # the loop's clock; unbound in a list from then on, the pod gives its room back


class NotBoundError(ClusterError):
    """Nothing was sent, or the API server did not begin with it: the pod is not bound by this."""


class _NoRoomError(ClusterError):
    """Somebody else has the room by now."""


class Binder:
    """Binds one pod after the other or many at once; no two attempts for one pod."""

    def __init__(self, ledger: ClusterLedger, api: ApiServer, view: View) -> None:
        self._ledger, self._api, self._view = ledger, api, view
        self._binding: set[PodRef] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._doubts: dict[PodRef, _Doubt] = {}
        self._doubted = asyncio.Event()

    async def wait_idle(self) -> None:
        await self._is_idle.wait()

    async def bind(self, body: bytes) -> bytes:
        """Reserve, write the wish and bind in one request; give back what did not come about."""
        outcome, error, fields = "bound", "", {}
        try:
            ref, node = read_binding(body)
            fields = {"pod": str(ref), "node": node}
            error = await self._bind_alone(ref, node)
            outcome = "conflict" if error else outcome
        except _NoRoomError as failure:
            outcome, error = "conflict", str(failure)
        except NotBoundError as failure:
            outcome, error = "refused", str(failure)
        except ClusterError as failure:
            outcome, error = "failed", str(failure)
        self._view.bound(outcome)
        if error:
            _log.warning("not bound", **fields, error=error)
        return binding_answer(error)

    async def _bind_alone(self, ref: PodRef, node: str) -> str:
        """One attempt for a pod at a time: kube-scheduler may give up waiting and ask again."""
        if ref in self._binding:
            return f"pod {ref} is being bound already"
        if len(self._binding) >= MOST_BINDINGS:
            # Behind these its time would run out unsent. kube-scheduler tries again in a second.
            raise NotBoundError(
                f"pod {ref}: {MOST_BINDINGS} others are being bound; nothing was sent"
            )
        self._binding.add(ref)
        self._is_idle.clear()
        try:
            return await self._try_to_bind(ref, node)
        finally:
            self._binding.discard(ref)
            if not self._binding:
                self._is_idle.set()

    async def _try_to_bind(self, ref: PodRef, node: str) -> str:
        """Why the pod is not bound, or ""."""
        pod, refused = self._ledger.pod(ref), ""
        for _ in range(_BIND_TRIES):
            pod = pod or await self._read(ref)
            if pod is None:
                return f"pod {ref} (uid {ref.uid}) is not there any more"
            if pod.node:
                return "" if pod.node == node else f"pod {ref} is bound to {pod.node} already"
            refused = await self._attempt(pod, node)
            if not refused:
                break
            self._give_back(ref)
            # The pod has changed since: read it again.
            pod = None
        return refused

    async def _attempt(self, pod: ClusterPod, node: str) -> str:
        """Reserve and bind; why the API server refused. Without an answer the reservation stays."""
        ref = pod.request.ref
        # kube-scheduler sends whatever has our resource in its spec, also "0" of it.
        hold = self._reserve(pod, node) if pod.request.asks_units else None
        offer = self._ledger.offers.get(node)
        wish = wish_annotations(hold, time.time_ns(), pod.annotations, offer) if hold else {}
        try:
            return await bind_pod(self._api, pod, node, wish, self._seconds)
        except NotBoundError:
            self._give_back(ref)
            raise
        except ClusterError:
            if await self._is_bound(ref, node):
                return ""
            if hold:
                self._doubt(ref, node, hold)
            raise

    def _seconds(self) -> float:
        """For how long a binding may be under way: it has to be over before another replica binds.

        NotBoundError: Time has passed since the call came in, and another one may bind now.
        """
        if standby := self._view.standby():
            raise NotBoundError(standby)
        return min(_BIND_SECONDS, self._view.left_seconds())

    def _give_back(self, ref: PodRef) -> None:
        """What is reserved, unless an earlier binding of the pod may still come about."""
        if ref not in self._doubts:
            self._ledger.release(ref)

    def _reserve(self, pod: ClusterPod, node: str) -> PodHold:
        """Reserve what the pod will hold; where a binding is in doubt, the same again."""
        ref = pod.request.ref
        doubt = self._doubts.get(ref)
        if doubt and self._ledger.reserves(ref):
            if doubt.node != node:
                raise ClusterError(
                    f"pod {ref}: the answer of the binding to {doubt.node} is still missing"
                )
            return doubt.hold
        self._doubts.pop(ref, None)  # the watch has ended it
        found = self._ledger.fit(node, self._ledger.checks(pod.request))
        if isinstance(found, Misfit):
            raise _NoRoomError(f"pod {ref} no longer fits node {node}: {found.text}")
        hold = found.hold
        self._ledger.reserve(node, hold, pod.request.cpu_milli)
        return hold

    async def _read(self, ref: PodRef) -> ClusterPod | None:
        return await self._view.read(ref, _READ_SECONDS)

    async def _is_bound(self, ref: PodRef, node: str) -> bool:
        """Whether a binding without an answer is there already."""
        try:
            pod = await self._read(ref)
        except ClusterError:
            return False
        return pod is not None and pod.node == node

    def _doubt(self, ref: PodRef, node: str, hold: PodHold) -> None:
        """A binding without an answer: what is reserved stays until it is certain.

        The API server may carry it out after a GET that shows the pod unbound, so the room is given
        back only when that has been so for a minute after the last attempt.
        """
        self._doubts[ref] = _Doubt(node, hold, asyncio.get_running_loop().time() + _DOUBT_SECONDS)
        self._doubted.set()

    async def settle(self) -> None:
        """End doubts, until cancelled: most by the watch, which tells the ledger, the others by a list."""
        while True:
            self._doubted.clear()
            until = [doubt.until + _TOGETHER_SECONDS for doubt in self._doubts.values()]
            try:
                async with asyncio.timeout_at(min(until, default=None)):
                    await self._doubted.wait()
            except TimeoutError:
                await self._settle_due()

    async def _settle_due(self) -> None:
        loop = asyncio.get_running_loop()
        for ref in [ref for ref in self._doubts if not self._ledger.reserves(ref)]:
            del self._doubts[ref]
        began, unbound = loop.time(), frozenset[str]()
        due = {ref: doubt for ref, doubt in self._doubts.items() if doubt.until <= began}
        if due:
            try:
                unbound = frozenset(await self._view.unbound())
            except ClusterError as error:
                _log.warning("bindings without an answer stay in doubt", error=str(error))
        for ref, doubt in due.items():
            if self._doubts.get(ref) is not doubt:  # tried again meanwhile
                continue
            if ref.uid in unbound and ref not in self._binding:
                del self._doubts[ref]
                self._ledger.release(ref)
            else:  # bound or gone, as the watch will tell; or asked for again later
                doubt.until = loop.time() + _DOUBT_SECONDS


async def bind_pod(
    api: ApiServer,
    pod: ClusterPod,
    node: str,
    annotations: Mapping[str, str],
    seconds: Callable[[], float],
) -> str:
    """Bind a pod to a node and annotate it, in one atomic request that takes `seconds` at most.

    Returns:
        Why the API server refused, or "" if the pod is bound.

    Raises:
        NotBoundError: It is throttled, there is no connection, the server does not know us, or `seconds` says so, which is
            asked again directly before it is sent.
        ClusterError: No answer, or 5xx of a failure half way: the pod may be bound or not.
    """
    ref = pod.request.ref
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
            "resourceVersion": pod.resource_version,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    request = Request("POST", pod_path(ref) + "/binding", body=body, check=seconds)
    try:
        answer = await api.call(request, deadline_seconds=seconds())
    except GaveUpError:
        raise
    except (ThrottledError, AccessError, NotSentError) as error:
        raise NotBoundError(str(error)) from error
    if answer.status >= 500:
        raise ClusterError(f"binding of {ref}: {answer.text}")
    return "" if answer.is_success else answer.text
