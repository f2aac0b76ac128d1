"""Card numbers, as the units that are held show them.

Unit ids contain the number. If the file with the numbers is lost, another number for a card would
give units twice. So the numbers in grants and in the kubelet's checkpoint are taken first, and none of
them goes to another card.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gpu_device_plugin.domain.cards.card import MAX_CARDS, CardNumber
from gpu_device_plugin.domain.grants.container_edits import VISIBLE_DEVICES
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.ledger import Ledger


def known_numbers(
    ledger: Ledger,
    entries: Iterable[CheckpointEntry],
    numbers_of: Callable[[Iterable[str]], frozenset[CardNumber]],
) -> dict[str, CardNumber]:
    """UUID -> number of every card of which units are held.

    A slice of one card shows its number directly; a slice of several cards shows the last one
    that remains when the others are known.

    `numbers_of` gives the card numbers that unit ids name, if their scheme puts them there.
    """
    claims: list[tuple[Sequence[str], frozenset[CardNumber]]] = [
        (grant.devices, numbers_of(grant.all_ids)) for grant in ledger.grants.values()
    ]
    claims += [(_visible(entry), numbers_of(entry.ids)) for entry in entries]
    known: dict[str, CardNumber] = {}
    for uuids, numbers in sorted(claims, key=lambda claim: len(claim[1])):
        unnumbered = [uuid for uuid in uuids if uuid not in known]
        free = numbers - {known[uuid] for uuid in uuids if uuid in known}
        if len(unnumbered) == len(free) == 1:
            known[unnumbered[0]] = next(iter(free))
    return known


def assign_numbers(
    numbers: Mapping[str, CardNumber], shown: Sequence[str], held: Collection[CardNumber] | None
) -> dict[str, CardNumber]:
    """UUID -> number of every card: known ones keep theirs, new ones get one.

    Once all numbers are taken, a new card gets that of a card that is gone and of which nothing is
    held. Where there is none, the new card is left out of the answer.

    `shown` are there or may come back at once, by NVML index; `held` are the numbers that units of
    any pod name, None if that is not known.
    """
    assigned = dict(numbers)
    for uuid in shown:
        if uuid not in assigned:
            taken = {*assigned.values(), *(held or ())}
            free = (CardNumber(number) for number in range(MAX_CARDS) if number not in taken)
            unheld = () if held is None else (old for old, n in assigned.items() if n not in held)
            gone = (old for old in unheld if old not in shown)
            number = next(free, None)
            if number is None:
                number = assigned.pop(next(gone, ""), None)
            if number is not None:
                assigned[uuid] = number
    return assigned


def _visible(entry: CheckpointEntry) -> Sequence[str]:
    """UUIDs in our answer in the checkpoint; with CDI or mounts its environment has none."""
    uuids = entry.edits.envs.get(VISIBLE_DEVICES, "").split(",")
    return [uuid for uuid in uuids if uuid.startswith(("GPU-", "MIG-"))]
