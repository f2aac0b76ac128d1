"""The stand-in kubelet's accounts: which devices there are, and which container holds which.

Sets are kept as the real device manager keeps them, with its faults: `allocated` is
built again from what containers hold whenever a finished pod is noticed, which forgets
devices of a call in flight (kubernetes #137534).
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb


@dataclass(slots=True)
class Held:
    """Devices of one resource in one container, and the plugin's answer for them."""

    ids: frozenset[str]
    answer: pb.ContainerAllocateResponse


@dataclass(slots=True)
class Book:
    """What the device manager remembers, by resource; `allocated` includes calls in flight.

    The keys of `held` are pod uid, container and resource.
    """

    healthy: dict[str, frozenset[str]] = field(default_factory=dict)
    unhealthy: dict[str, frozenset[str]] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    held: dict[tuple[str, str, str], Held] = field(default_factory=dict)

    def knows(self, resource: str) -> bool:
        """Whether a plugin serves, or has served, this resource."""
        return resource in self.healthy or resource in self.allocated

    def replace_list(self, resource: str, devices: Iterable[pb.Device]) -> None:
        """Takes over a device list; the last one wins."""
        listed = {device.ID: device.health == "Healthy" for device in devices}
        self.healthy[resource] = frozenset(i for i, is_healthy in listed.items() if is_healthy)
        self.unhealthy[resource] = frozenset(i for i, healthy in listed.items() if not healthy)

    def mark_unhealthy(self, resource: str) -> None:
        """The plugin is gone: nothing of it may be given away, all of it is still counted."""
        listed = self.healthy.get(resource, frozenset()) | self.unhealthy.get(resource, frozenset())
        self.healthy[resource] = frozenset()
        self.unhealthy[resource] = listed

    def forget(self, resource: str) -> None:
        """The plugin has been gone for longer than the grace period."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def ids_of(self, uid: str, container: str, resource: str) -> frozenset[str] | None:
        """What a container holds, None where it holds nothing of the resource."""
        found = self.held.get((uid, container, resource))
        return None if found is None else found.ids

    def of_container(self, uid: str, container: str) -> dict[str, Held]:
        """Everything a container holds, by resource."""
        return {key[2]: held for key, held in self.held.items() if key[:2] == (uid, container)}

    def by_container(self) -> dict[tuple[str, str], dict[str, Held]]:
        """The same of all containers, by pod uid and container."""
        found: dict[tuple[str, str], dict[str, Held]] = {}
        for (uid, container, resource), held in self.held.items():
            found.setdefault((uid, container), {})[resource] = held
        return found

    def recount(self) -> None:
        """Builds `allocated` again from what containers hold."""
        self.allocated = {}
        for (_, _, resource), held in self.held.items():
            self.allocated.setdefault(resource, set()).update(held.ids)

    def drop_inactive(self, active_uids: frozenset[str]) -> None:
        """Takes back what pods hold that are not active any more."""
        gone = [key for key in self.held if key[0] not in active_uids]
        if gone:
            for key in gone:
                del self.held[key]
            self.recount()

    def write(self, path: Path) -> None:
        """Writes the checkpoint as a kubelet lays it out; the checksum is not the kubelet's."""
        content = {
            "PodDeviceEntries": [
                {
                    "PodUID": uid,
                    "ContainerName": container,
                    "ResourceName": resource,
                    "DeviceIDs": {"-1": sorted(held.ids)},
                    "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
                }
                for (uid, container, resource), held in self.held.items()
            ],
            "RegisteredDevices": {name: sorted(ids) for name, ids in self.healthy.items()},
        }
        checksum = zlib.crc32(json.dumps(content).encode())
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"Data": content, "Checksum": checksum}), "utf-8")
        new.chmod(0o600)
        new.replace(path)


def read_book(path: Path) -> Book:
    """The book after a restart: who holds what, and known resources without any device.

    A file that cannot be understood is no file, as for the real one.
    """
    book = Book()
    try:
        content = json.loads(path.read_text("utf-8"))["Data"]
        for entry in content["PodDeviceEntries"]:
            key = (entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
            book.held[key] = _parse_entry(entry)
        for resource in content["RegisteredDevices"]:
            book.healthy[resource] = book.unhealthy[resource] = frozenset()
    except (OSError, ValueError, KeyError, TypeError):
        return Book()
    book.recount()
    return book


def _parse_entry(entry: Mapping[str, object]) -> Held:
    ids = entry["DeviceIDs"]
    answer = entry["AllocResp"]
    if not isinstance(ids, dict) or not isinstance(answer, str):
        raise TypeError("no entry of a checkpoint")
    return Held(
        ids=frozenset(i for part in ids.values() for i in part),
        answer=pb.ContainerAllocateResponse.FromString(base64.b64decode(answer)),
    )
