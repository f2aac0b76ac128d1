"""Containers of a rig's pods, with programs in them that use the simulated cards as they are told."""

import asyncio
from pathlib import Path

from tests.agent.rig import Rig
from tests.isolation.box import Box, Node, Program, native_directory


class Boxes:
    """As many containers as a test asks for."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._made: list[Box] = []

    async def start(self, rig: Rig, pod: str) -> Program:
        """A program in the pod's container, which finds the slice's files as if mounted there."""
        mine = rig.run / "slices" / rig.grant(pod).slice_id
        root = rig.root / f"box-{pod}"
        (root / "state").mkdir(parents=True)
        (root / "config").symlink_to(mine / "config")
        (root / "state" / "region").symlink_to(mine / "region")
        uuids = [card.uuid for card in rig.cards.view().cards]
        box = Box(root, Node(rig.cards.state, uuids, native_directory()), self._programs)
        self._made.append(box)
        return await asyncio.to_thread(box.start)

    def close(self) -> None:
        """The programs end."""
        for box in self._made:
            box.close()
