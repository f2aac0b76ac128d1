"""Containers of a rig's pods, with programs in them that use the simulated cards as they are told."""

import asyncio
from pathlib import Path

from tools.harness.isolation.box import Box, Node, Program, native_directory
from tools.harness.rig import Rig


class Boxes:
    """As many containers as a test asks for."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self._made: dict[Path, Box] = {}

    async def start(self, rig: Rig, pod: str) -> Program:
        """The told program in the pod's container."""
        return await asyncio.to_thread(self.box(rig, pod).start)

    def box(self, rig: Rig, pod: str) -> Box:
        """The pod's container, whose programs find the slice's files as if mounted there."""
        root = rig.root / f"box-{pod}"
        if root in self._made:
            return self._made[root]
        mine = rig.run / "slices" / rig.grant(pod).slice_id
        (root / "state").mkdir(parents=True)
        (root / "config").symlink_to(mine / "config")
        (root / "state" / "region").symlink_to(mine / "region")
        uuids = [card.uuid for card in rig.cards.view().cards]
        node = Node(rig.cards.state, uuids, native_directory())
        return self._made.setdefault(root, Box(root, node, self.programs))

    def close(self) -> None:
        """The programs end."""
        for box in self._made.values():
            box.close()
