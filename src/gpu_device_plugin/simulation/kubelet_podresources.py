"""The stand-in kubelet's PodResources server: List and Get, limited as the real one."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.kubelet._proto import podresources_pb2 as pb
from gpu_device_plugin.simulation.kubelet_book import Book
from gpu_device_plugin.simulation.kubelet_pods import Kind, StandInPod

_PER_SECOND = 100.0
_BURST = 10.0


class PodResourcesServer:
    """Tells which active pod holds what; a pod being admitted is active already.

    Attributes:
        book: What is held.
        has_get: Whether Get is served; a kubelet before 1.34 lacks it.
        lists_finished: Whether List names finished pods too, as before 1.34.
        lists: How often List was answered.
    """

    def __init__(
        self,
        socket: Path,
        active: Callable[[], tuple[StandInPod, ...]],
        known: Callable[[], tuple[StandInPod, ...]],
        holding: Callable[[], frozenset[str]],
        clock: Callable[[], float],
    ) -> None:
        self.book = Book()
        self.has_get = True
        self.lists_finished = False
        self.lists = 0
        self._socket = socket
        self._active = active
        self._known = known
        self._holding = holding
        self._clock = clock
        self._tokens = _BURST
        self._counted_at = clock()
        self._server: Any = None

    async def start(self, book: Book) -> None:
        """Listens, and answers from `book`."""
        self.book = book
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        methods = {
            "List": grpc.unary_unary_rpc_method_handler(
                self._list,
                pb.ListPodResourcesRequest.FromString,
                pb.ListPodResourcesResponse.SerializeToString,
            ),
            "Get": grpc.unary_unary_rpc_method_handler(
                self._get,
                pb.GetPodResourcesRequest.FromString,
                pb.GetPodResourcesResponse.SerializeToString,
            ),
        }
        if not self.has_get:
            del methods["Get"]
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)
        )
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _list(self, _request: Any, context: Any) -> pb.ListPodResourcesResponse:
        await self._count(context)
        self.lists += 1
        # This is what can make a kubelet give a device of a call in flight away again.
        self.book.drop_inactive(self._holding())
        listed = self._known() if self.lists_finished else self._active()
        return pb.ListPodResourcesResponse(pod_resources=self._messages(listed))

    async def _get(self, request: Any, context: Any) -> pb.GetPodResourcesResponse:
        await self._count(context)
        wanted = (request.pod_namespace, request.pod_name)
        found = [pod for pod in self._active() if (pod.namespace, pod.name) == wanted]
        if not found:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"pod {wanted[1]} in namespace {wanted[0]} not found"
            )
        return pb.GetPodResourcesResponse(pod_resources=self._messages(found)[0])

    async def _count(self, context: Any) -> None:
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._counted_at) * _PER_SECOND)
        self._counted_at = now
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1

    def _messages(self, pods: Iterable[StandInPod]) -> list[pb.PodResources]:
        return [
            pb.PodResources(
                name=pod.name,
                namespace=pod.namespace,
                containers=[
                    pb.ContainerResources(
                        name=container.name,
                        devices=self._devices(pod.uid, container.name),
                        dynamic_resources=map(_claim, container.drivers),
                    )
                    for container in pod.containers
                    if container.kind is not Kind.INIT
                ],
            )
            for pod in pods
        ]

    def _devices(self, uid: str, container: str) -> list[pb.ContainerDevices]:
        return [
            pb.ContainerDevices(resource_name=resource, device_ids=sorted(held.ids))
            for resource, held in self.book.of_container(uid, container).items()
        ]


def _claim(driver: str) -> pb.DynamicResource:
    return pb.DynamicResource(claim_resources=[pb.ClaimResource(driver_name=driver)])
