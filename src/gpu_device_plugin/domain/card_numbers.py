"""Which number each card has, as those tell who hold units under it.

The number stands in unit ids. Should the file that remembers it be lost, another number for
a card would give units twice: so grants and the kubelet's kept answers are asked first.
"""

from collections.abc import Iterable, Sequence

from gpu_device_plugin.domain.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.units import cards_of

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def known_numbers(ledger: Ledger, entries: Iterable[CheckpointEntry]) -> dict[str, int]:
    """UUID -> number for every card that somebody holds units of.

    A slice of one card tells its number outright; one of several cards tells the last one
    that is left when the others are known.
    """
    claims: list[tuple[Sequence[str], frozenset[int]]] = [
        (grant.cards, grant.card_numbers) for grant in ledger.grants.values()
    ]
    claims += [(_visible(entry), cards_of(entry.ids)) for entry in entries]
    known: dict[str, int] = {}
    for uuids, numbers in sorted(claims, key=lambda claim: len(claim[1])):
        left = [uuid for uuid in uuids if uuid not in known]
        free = numbers - {known[uuid] for uuid in uuids if uuid in known}
        if len(left) == len(free) == 1:
            known[left[0]] = next(iter(free))
    return known


def _visible(entry: CheckpointEntry) -> Sequence[str]:
    """UUIDs in our kept answer; with CDI or mounts the environment names none."""
    uuids = entry.edits.envs.get(_VISIBLE, "").split(",")
    return [uuid for uuid in uuids if uuid.startswith(("GPU-", "MIG-"))]
