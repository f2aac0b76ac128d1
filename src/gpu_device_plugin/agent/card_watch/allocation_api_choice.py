"""Which allocation API the node's cards have: by its label, kept over a restart."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_device_plugin.domain.node.allocation_api import (
    ALLOCATION_API_LABEL,
    AllocationApi,
    has_claims_api,
    parse_allocation_api,
)
from gpu_device_plugin.domain.node.modes import NodeMode, is_whole
from gpu_device_plugin.settings.agent_settings import Settings


@dataclass(eq=False)
class AllocationApiChoice:
    """The choice of the allocation API that serves this node."""

    settings: Settings
    _note: Callable[[str, str, str | None], None]
    kept: AllocationApi
    """The last one, which an unknown name does not change; also that of the run before."""
    kubelet_version: str = ""  # for instance `v1.36.3`; empty while unknown
    refused: str = ""
    """What the API server said when it took no offer for claims; empty where it may."""

    def load(self, text: str) -> None:
        """Start with the allocation API of the last run, if it was stored."""
        self.kept = parse_allocation_api(text) or self.kept

    def decide(self, text: str | None, mode: NodeMode) -> AllocationApi:
        wanted = parse_allocation_api(text or self.settings.allocation_api)
        wrong = f"label {ALLOCATION_API_LABEL}={text} is not a known allocation API; keeping {self.kept}. Known: {', '.join(AllocationApi)}"
        self._note("unknown allocation API", "UnknownAllocationApi", None if wanted else wrong)
        if wanted is not AllocationApi.DRA:
            self.refused = ""
        missing = self._lacks_claims(mode) if wanted is AllocationApi.DRA else ""
        text = f"allocation API {AllocationApi.DRA} is asked for, but {missing}; the device plugin serves"
        self._note("allocation API", "AllocationApiNotAvailable", text if missing else None)
        self.kept = AllocationApi.DEVICE_PLUGIN if missing else wanted or self.kept
        return self.kept

    def note_slice(self, refused: str) -> None:
        """Report that the API server took our slice once and refuses it now, or takes it (empty)."""
        text = (
            f"the API server refuses the node's ResourceSlice ({refused}); what it offers for claims "
            f"stays as it was, and the agent tries again until the API server takes it"
        )
        self._note("slice", "SliceRefused", text if refused else None)

    def _lacks_claims(self, mode: NodeMode) -> str:
        wanted = self.settings.cdi_dir and not self.settings.without_claims
        if self.settings.standalone or not wanted:
            return "this agent serves no claims: --standalone or --without-claims is set, or --cdi-dir is empty (chart: dra.enabled)"
        if is_whole(mode):
            return f"mode {mode} gives whole cards"
        if self.kubelet_version and not has_claims_api(self.kubelet_version):
            return f"the kubelet is {self.kubelet_version}, and claims need 1.36 or later"
        if self.refused:
            return f"the API server refuses ResourceSlices ({self.refused}); dra.enabled of the chart gives the rights"
        return ""
