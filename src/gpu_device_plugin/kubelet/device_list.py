"""The device list that a resource offers now, and the streams that send every change of it."""

import asyncio
from collections.abc import Sequence

from gpu_device_plugin.domain.pools import DeviceGroup
from gpu_device_plugin.kubelet.encoding import encode_list


class DeviceList:
    """One resource's list; every open ListAndWatch stream waits on it.

    Attributes:
        message: The ListAndWatchResponse to send, encoded.
        is_offered: False until the first `publish`, and after `withdraw`.
    """

    def __init__(self) -> None:
        self.message = b""
        self.is_offered = False
        self._changed = asyncio.Event()

    def publish(self, groups: Sequence[DeviceGroup]) -> bool:
        """Offer `groups` and wake the streams; False if nothing differs."""
        message = encode_list(groups)
        if self.is_offered and message == self.message:
            return False
        self.message = message
        self.is_offered = True
        self.wake()
        return True

    def withdraw(self) -> None:
        """Stop offering anything."""
        self.is_offered = False
        self.wake()

    def next_change(self) -> asyncio.Event:
        """An event that the next change sets; read it together with `message`."""
        return self._changed

    def wake(self) -> None:
        """Make every stream check this list again, and whether it should still be open."""
        self._changed.set()
        self._changed = asyncio.Event()
