"""How the release before reads the state directory, as strictly as it does: kept as it was.

The seal (first line, length, checksum, zeros up to a whole block) and layout 1 of the grants, whose
reader refuses the whole file for one key more or less. Goes with `store.grants_v1`.
"""

import json
import zlib
from pathlib import Path
from typing import Any

GRANT_KEYS = {
    "slice_id": str,
    "pod": list,
    "container": str,
    "kind": str,
    "index": int,
    "mem_ids": list,
    "core_ids": list,
    "cards": list,
    "card_bytes": list,
    "mem_units": int,
    "core_percent": int,
    "pod_units": int,
    "unit_mib": int,
    "mode": str,
    "is_isolated": bool,
    "is_checked": bool,
    "library_version": str,
    "created_seconds": float,
}
CARD_KEYS = {"uuid", "number", "index", "minor", "model", "memory_mib"}
FAULT_KEYS = {"reason", "text", "recovery", "since_seconds", "is_action_asked"}
BLOCK = 4096


def grants_before(path: Path) -> dict[str, dict[str, Any]]:
    """Grants by slice, of the newer of the two files."""
    found = {}
    for line in newer(path, "grants").splitlines():
        plain = json.loads(line)
        assert {key: type(value) for key, value in plain.items()} == GRANT_KEYS
        assert plain["kind"] in {"init", "sidecar", "app"}
        assert plain["mode"] in {"core_mem", "cgpu", "share"}
        assert plain["unit_mib"] in {128, 1024}
        assert len(plain["pod"]) == 3
        found[plain["slice_id"]] = plain
    return found


def cards_before(path: Path) -> dict[str, Any]:
    """The file `cards`; of health what must be there."""
    content: dict[str, Any] = json.loads(newer(path, "cards"))
    for card in content["cards"]:
        assert card.keys() == CARD_KEYS
    health = content["health"]
    assert health["version"] == 1
    assert {"boot_id", "driver", "cards"} <= health.keys()
    for card in health["cards"]:
        assert {"uuid", "is_shown", "faults"} <= card.keys()
        for fault in card["faults"]:
            assert fault.keys() >= FAULT_KEYS
    return content


def node_before(path: Path) -> dict[str, Any]:
    """The file `node`."""
    content: dict[str, Any] = json.loads(newer(path, "node"))
    return content


def newer(path: Path, kind: str) -> bytes:
    """The payload of the file with the higher number of write."""
    pair = (path, path.with_name(path.name + ".other"))
    found = [_opened(file, kind) for file in pair if file.exists()]
    return max(found)[1]


def _opened(path: Path, kind: str) -> tuple[int, bytes]:
    content = path.read_bytes()
    header, _, rest = content.partition(b"\n")
    magic, *said, crc = header.decode().split(" ")
    payload = rest[: int(said[2])]
    assert (magic, said[0], said[1]) == ("gpu-device-plugin", kind, "1")
    assert rest[int(said[2]) :] == bytes(-(len(header) + 1 + len(payload)) % BLOCK)
    assert crc == f"{zlib.crc32(payload, zlib.crc32(' '.join(said).encode())):08x}"
    return int(said[4]), payload
