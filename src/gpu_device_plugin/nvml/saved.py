"""Health as bytes for the state directory, so that it survives a restart of the agent."""

import msgspec

from gpu_device_plugin.domain.faults import Health
from gpu_device_plugin.errors import StateError

_VERSION = 1


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    health: Health


def encode_health(health: Health) -> bytes:
    """The bytes to keep."""
    return msgspec.json.encode(_Saved(_VERSION, health))


def decode_health(content: bytes) -> Health:
    """What `encode_health` made. Raises StateError for anything else."""
    try:
        saved = msgspec.json.decode(content, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"health file of {len(content)} bytes: {error}") from error
    if saved.version != _VERSION:
        raise StateError(f"health file of version {saved.version}, this agent reads {_VERSION}")
    return saved.health
