"""The client of the measurement: calls as a kubelet makes them, timed in a process of its own.

    python -m tools.bench.caller

Reads one JSON object a line and answers with one: `{"socket", "method", "available",
"must_include", "size", "ids"}` in, `{"ns", "ids", "answer", "error"}` out. Nothing else runs
here while a call is under way, so what is timed is the call: gRPC's client, the unix socket
and the server. Before each Allocate an empty server is called too (`empty`), and before each tenth
GetPreferredAllocation the kubelet's PodResources List (`pods`, which nobody decodes), so that all
are measured under the same load. A List before each would use up the kubelet's 100 a second.
"""

import base64
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import grpc

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import podresources_pb2

_SERVICE = "/v1beta1.DevicePlugin/"
_LIST = "/v1.PodResourcesLister/List"
Question = Mapping[str, Any]


class Caller:
    """Keeps one connection a socket."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}
        self._preferred = 0

    def answer(self, question: Question) -> dict[str, Any]:
        """Make one call, and the empty server's before it where that is wanted."""
        try:
            if question["method"] == "Allocate":
                return self._allocate(question)
            return self._prefer(question)
        except grpc.RpcError as error:
            return {"error": f"{error.code().name}: {error.details()}"}

    def _prefer(self, question: Question) -> dict[str, Any]:
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=question["available"],
            must_include_deviceIDs=question["must_include"],
            allocation_size=question["size"],
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        listed = []
        if self._preferred % 10 == 0:
            nothing = podresources_pb2.ListPodResourcesRequest()
            listed.append(self._timed(question["pods"], _LIST, nothing, None)[0])
        self._preferred += 1
        decode, method = pb.PreferredAllocationResponse.FromString, "GetPreferredAllocation"
        nanoseconds, answer = self._timed(question["socket"], _SERVICE + method, request, decode)
        ids = list(answer.container_responses[0].deviceIDs)
        return {"ns": nanoseconds, "list_ns": listed, "ids": ids}

    def _allocate(self, question: Question) -> dict[str, Any]:
        asked = pb.ContainerAllocateRequest(devices_ids=question["ids"])
        request = pb.AllocateRequest(container_requests=[asked])
        decode, method = pb.AllocateResponse.FromString, _SERVICE + "Allocate"
        empty, _ = self._timed(question["empty"], method, request, decode)
        nanoseconds, answer = self._timed(question["socket"], method, request, decode)
        encoded = answer.container_responses[0].SerializeToString()
        return {"ns": nanoseconds, "empty_ns": empty, "answer": base64.b64encode(encoded).decode()}

    def _timed(self, socket: str, method: str, request: Any, decode: Any) -> tuple[int, Any]:
        channel = self._channels.get(socket)
        if channel is None:
            channel = self._channels[socket] = grpc.insecure_channel(f"unix:{socket}")
            grpc.channel_ready_future(channel).result(timeout=10)
        call = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=decode
        )
        started = time.perf_counter_ns()
        answer = call(request, timeout=30)
        return time.perf_counter_ns() - started, answer


def main() -> None:
    """Answer until stdin ends."""
    caller = Caller()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(caller.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
