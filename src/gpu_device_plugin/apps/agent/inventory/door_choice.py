"""The node's door: what its label or the setting asks for, as far as claims can be served here."""

from collections.abc import Callable

from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.doors import DOOR_LABEL, Door, has_claims_api, parse_door
from gpu_device_plugin.domain.modes import NodeMode, is_whole


class DoorChoice:
    """Which door serves.

    Attributes:
        kept: The last one, which an unknown name does not change; also that of the run before.
        kubelet_version: For instance `v1.36.3`; empty while unknown.
        refused: What the API server said when it took no offer for claims; empty where it may.
    """

    def __init__(
        self, settings: Settings, note: Callable[[str, str, str | None], None], kept: Door
    ) -> None:
        self._settings = settings
        self._note = note
        self.kept = kept
        self.kubelet_version = ""
        self.refused = ""

    def load(self, door: str) -> None:
        """Start with the door of the last run, if it was stored."""
        self.kept = parse_door(door) or self.kept

    def decide(self, text: str | None, mode: NodeMode) -> Door:
        """The door that serves now.

        Args:
            text: The node's label, or None.
            mode: The node's mode.
        """
        wanted, known = parse_door(text or self._settings.door), ", ".join(Door)
        self._note(
            "unknown door",
            "UnknownDoor",
            f"label {DOOR_LABEL}={text} names no door; it stays {self.kept}. Known: {known}"
            if wanted is None
            else None,
        )
        if wanted is not Door.DRA:
            self.refused = ""
        missing = self._lacks_claims(mode) if wanted is Door.DRA else ""
        self._note(
            "door",
            "DoorNotAvailable",
            f"door {Door.DRA} is asked for, but {missing}; the device plugin serves"
            if missing
            else None,
        )
        self.kept = Door.DEVICE_PLUGIN if missing else wanted or self.kept
        return self.kept

    def note_slice(self, refused: str) -> None:
        """Report that the API server took our slice once and refuses it now, or takes it (empty)."""
        self._note(
            "slice",
            "SliceRefused",
            f"the API server refuses the node's ResourceSlice ({refused}); what it offers for claims "
            f"stays as it was, and it is asked again until it takes it"
            if refused
            else None,
        )

    def _lacks_claims(self, mode: NodeMode) -> str:
        if self._settings.standalone:
            return "claims need an API server (--standalone)"
        if is_whole(mode):
            return f"mode {mode} gives whole cards"
        if self.kubelet_version and not has_claims_api(self.kubelet_version):
            return f"the kubelet is {self.kubelet_version}, and claims need 1.36 or later"
        if self.refused:
            return f"the API server refuses ResourceSlices ({self.refused}); dra.enabled of the chart gives the rights"
        return ""
