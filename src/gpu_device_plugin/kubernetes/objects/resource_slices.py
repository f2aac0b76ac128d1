"""Our node's ResourceSlice, what claims may get of it, kept at the API server."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from gpu_device_plugin.domain.grants.claims import DRIVER, OfferedDevice
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Bare

_PATH = "/apis/resource.k8s.io/v1/resourceslices"
_CONTENT = f"{DRIVER}/content"
"""Annotation with a digest of what was written: the server writes quantities in its own way."""
_LONGEST_STRING = 64
_log = structlog.get_logger(__name__)


class ResourceSlices:
    """Keeps one ResourceSlice as it is wanted; others of our driver on the node are removed.

    `node_uid` is the uid of its object now; empty where there is none, or it is not known.
    """

    def __init__(self, api: ApiServer, node: str, node_uid: Callable[[], str]) -> None:
        self._api = api
        self._node = node
        self._name = f"{node}-{DRIVER}"[:253]
        self._node_uid = node_uid
        self._wanted: dict[str, object] | None = None
        self._present: dict[str, Bare] = {}
        self._removals = 0
        self._is_begun = asyncio.Event()
        self._wake = asyncio.Event()
        self.trouble = ""
        """Why what is wanted is not there yet; empty if it is."""
        self.refused = ""
        """That the API server has no such objects, or that we may not write them; empty once it took one."""
        self.was_taken = False
        """Whether the server has, or had, what we wanted since we last wanted none."""
        self._refused: Request | None = None
        self._reflection = Reflection(
            api,
            Source(_PATH, f"spec.driver={DRIVER},spec.nodeName={node}", is_optional=True),
            Bare,
            ObjectListener(replace=self._replace, put=self._put, remove=self._remove),
        )

    def offer(self, devices: Sequence[OfferedDevice], driver_version: str) -> None:
        """Want these; returns at once. No device at all removes the slice."""
        spec = slice_spec(self._node, devices, driver_version) if devices else None
        if spec == self._wanted and self._is_begun.is_set():
            return
        self._wanted, self.refused = spec, ""
        self._is_begun.set()
        self._wake.set()

    def node_changed(self) -> None:
        self._wake.set()

    async def would_take(self) -> bool:
        """Whether the server would take now what it refused last; it is asked without a write."""
        if self._refused is None:
            return True
        try:
            answer = await self._api.call_in_turn(replace(self._refused, query={"dryRun": "All"}))
        except ClusterError:
            return False
        return answer.is_success or answer.status == 409  # somebody has made it meanwhile

    @property
    def is_written(self) -> bool:
        return self._reflection.is_synced and self._difference() is None

    async def run(self) -> None:
        await self._is_begun.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflection.run())
            group.create_task(self._write())

    async def _write(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            request = self._difference() if self._reflection.is_synced else None
            if request is None or (request.method != "DELETE" and not self._node_uid()):
                failures = 0
                await self._wake.wait()
                continue
            try:
                removals = self._removals
                answer = await self._api.call_in_turn(request)
                self._note(request, answer, is_newest=removals == self._removals)
                failures = 0
            except ClusterError as error:
                failures += 1
                if str(error) != self.trouble:
                    _log.warning("resource slice is not written", error=str(error))
                self.trouble = str(error)
                await asyncio.sleep(self._api.availability.pace.pause(failures))

    def _note(self, request: Request, answer: Answer, *, is_newest: bool) -> None:
        """Take what the server has now; it was a change of others where it refuses with 409.

        The watch may have shown already that what was written is gone: then it is right.
        """
        if request.method == "DELETE" and (answer.is_success or answer.is_not_found):
            self._present.pop(request.path.rpartition("/")[2], None)
            self.was_taken = False
        elif answer.is_success:
            found = msgspec.json.decode(answer.body, type=Bare)
            if is_newest:
                self._present[found.metadata.name] = found
            self.refused, self.was_taken = "", True
        elif answer.is_not_found and request.method == "PUT":
            self._present.pop(self._name, None)
        else:
            if answer.status in (403, 404):
                self.refused = f"{request.method} {request.path}: {answer.text}"
                self._refused = request
            raise ClusterError(f"{request.method} {request.path}: {answer.text}")
        self.trouble = ""

    def _difference(self) -> Request | None:
        """The next request that brings the server nearer to what is wanted."""
        for name in self._present:
            if name != self._name or self._wanted is None:
                return Request("DELETE", f"{_PATH}/{name}")
        if self._wanted is None:
            return None
        digest = hashlib.sha256(msgspec.json.encode(self._wanted)).hexdigest()[:16]
        present = self._present.get(self._name)
        metadata: dict[str, object] = {"name": self._name, "annotations": {_CONTENT: digest}}
        uid = self._node_uid()
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": self._wanted}
        if present is None:
            return Request("POST", _PATH, body={**body, "metadata": metadata})
        is_same = present.annotations.get(_CONTENT) == digest
        if is_same and (not uid or present.metadata.owner_uid == uid):
            return None
        metadata["resourceVersion"] = present.metadata.resource_version
        return Request("PUT", f"{_PATH}/{self._name}", body={**body, "metadata": metadata})

    def _replace(self, found: Sequence[Bare]) -> None:
        self._present = {each.metadata.name: each for each in found}
        self._removals += 1
        self.was_taken = self.was_taken or bool(found)
        self._wake.set()

    def _put(self, found: Bare) -> None:
        self._present[found.metadata.name] = found
        self._wake.set()

    def _remove(self, gone: Bare) -> None:
        self._present.pop(gone.metadata.name, None)
        self._removals += 1
        self._wake.set()


def slice_spec(
    node: str, devices: Sequence[OfferedDevice], driver_version: str
) -> dict[str, object]:
    """`spec` of the ResourceSlice; at most 36 cards, so one slice has room for all."""
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [_device(each, driver_version) for each in devices],
    }


def _device(device: OfferedDevice, driver_version: str) -> dict[str, object]:
    card, capacity = device.card, device.capacity
    whole, step = f"{capacity.memory_mib}Mi", f"{capacity.step_mib}Mi"
    capacities: dict[str, Any] = {
        "memory": _describe_capacity(whole, default=whole, step=step),
        "slots": _describe_capacity(str(capacity.slots), default="1", step="1"),
    }
    if capacity.core_percent:
        compute, part = str(capacity.core_percent), str(capacity.core_step)
        capacities["cores"] = _describe_capacity(compute, default=compute, step=part)
    found: dict[str, object] = {
        "name": device.name,
        "attributes": {
            "mode": _text(device.mode),
            "uuid": _text(card.uuid),
            "index": {"int": card.index},
            "model": _text(card.model),
            "memoryMiB": {"int": card.memory_mib},
            "driverVersion": _text(driver_version or "unknown"),
        },
        "capacity": capacities,
        "allowMultipleAllocations": True,
    }
    if device.taints:
        found["taints"] = [
            {"key": key, "value": _label_value(value), "effect": "NoSchedule"}
            for key, value in device.taints.items()
        ]
    return found


def _describe_capacity(value: str, *, default: str, step: str) -> Mapping[str, object]:
    valid = {"min": step, "step": step, "max": value}
    return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}


def _text(value: str) -> Mapping[str, str]:
    return {"string": value[:_LONGEST_STRING]}


def _label_value(text: str) -> str:
    """The text as a value of a taint: at most 63 of letters, digits, `-`, `_` and `.`."""
    allowed = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
    return allowed[:63].strip("-_.")
