"""Which allocation API the node's cards have: by its label, kept over a restart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.node.allocation_api import (
    ALLOCATION_API_LABEL,
    AllocationApi,
    has_claims_api,
    parse_allocation_api,
)
from gpu_device_plugin.domain.node.modes import NodeMode, SwitchDecision, is_whole, switch
from gpu_device_plugin.settings.agent_settings import Settings


@dataclass(eq=False)
class AllocationApiChoice:
    """The choice of the allocation API that serves this node."""

    settings: Settings
    _note: Callable[[str, str, str | None], None]
    kept: AllocationApi | None = None
    """The one that serves, also in the run before; None at the very first start."""
    kubelet_version: str = ""  # for instance `v1.36.3`; empty while unknown
    refused: str = ""
    """What the API server said when it took no offer for claims; empty where it may."""

    @property
    def has_unprepared_claims(self) -> bool:
        """Whether claims may be allocated here that no grant shows: the API server has to be asked."""
        is_served = self._serves_claims and not self.refused
        return self.kept is AllocationApi.DRA and is_served

    @property
    def _serves_claims(self) -> bool:
        settings = self.settings
        return bool(settings.cdi_dir) and not (settings.without_claims or settings.standalone)

    def decide(
        self, text: str | None, mode: NodeMode, holders: Sequence[str] | None
    ) -> SwitchDecision[AllocationApi]:
        """What the node's label, or the setting, means for its allocation API now."""
        kept = self.kept or AllocationApi.DEVICE_PLUGIN
        wanted = parse_allocation_api(text or self.settings.allocation_api)
        wrong = f"label {ALLOCATION_API_LABEL}={text} is not a known allocation API; keeping {kept}. Known: {', '.join(AllocationApi)}"
        self._note("unknown allocation API", "UnknownAllocationApi", None if wanted else wrong)
        if wanted is not AllocationApi.DRA:
            self.refused = ""
        missing = self._lacks_claims(mode) if wanted is AllocationApi.DRA else ""
        wanted = AllocationApi.DEVICE_PLUGIN if missing else wanted or kept
        found = switch(
            "allocation API",
            self.kept,
            wanted,
            f"allocation API {wanted}",
            holders,
            reason=("AllocationApiSwitched", "AllocationApiSwitchRefused"),
        )
        # Where claims are held the other Event says what serves until when.
        serves = "; the device plugin serves" if found.value is AllocationApi.DEVICE_PLUGIN else ""
        text = f"allocation API {AllocationApi.DRA} is asked for, but {missing}{serves}"
        self._note("allocation API", "AllocationApiNotAvailable", text if missing else None)
        self._note("allocation API switch", found.note_reason, found.note)
        self.kept = found.value
        return found

    def note_slice(self, refused: str) -> None:
        """Report that the API server took our slice once and refuses it now, or takes it (empty)."""
        text = (
            f"the API server refuses the node's ResourceSlice ({refused}); what it offers for claims "
            f"stays as it was, and the agent tries again until the API server takes it"
        )
        self._note("slice", "SliceRefused", text if refused else None)

    def _lacks_claims(self, mode: NodeMode) -> str:
        if not self._serves_claims:
            return "this agent serves no claims: --standalone or --without-claims is set, or --cdi-dir is empty (chart: dra.enabled)"
        if is_whole(mode):
            return f"mode {mode} gives whole cards"
        if self.kubelet_version and not has_claims_api(self.kubelet_version):
            return f"the kubelet is {self.kubelet_version}, and claims need 1.36 or later"
        if self.refused:
            return f"the API server refuses ResourceSlices ({self.refused}); dra.enabled of the chart gives the rights"
        return ""
