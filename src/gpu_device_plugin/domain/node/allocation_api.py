"""The two allocation APIs by which requests reach a node: the device plugin API, and claims (DRA)."""

from enum import StrEnum

ALLOCATION_API_LABEL = "gpu-device-plugin/allocation-api"
_MINOR = 36  # the first with consumable capacity and mutating policies on by default


class AllocationApi(StrEnum):
    """Values of `--allocation-api` and of the node label `gpu-device-plugin/allocation-api` (docs/dra.md)."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"


def parse_allocation_api(text: str) -> AllocationApi | None:
    """The allocation API of that name, or None."""
    return next((api for api in AllocationApi if api == text), None)


def has_claims_api(version: str) -> bool:
    """Whether a kubelet of that version serves the claims that we make, and so does its API server."""
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    return major == "1" and minor.isdecimal() and int(minor) >= _MINOR
