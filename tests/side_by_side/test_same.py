"""NVIDIA's own plugin and this one, side by side: the same resources, ids, NUMA nodes and answers.

Both run on one simulated node, with the same flags and the same file. What is different is in
test_different.py, and in the table of docs/nvidia.md.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.harness.nvidia_plugin.programs import NvidiaPlugin, both
from tools.harness.nvidia_plugin.seen import answered, counted, is_settled, listed, preferred
from tools.harness.rig import Rig
from tools.harness.waiting import until

pytestmark = pytest.mark.long

TEN_REPLICAS = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 10}]
"""
RENAMED = TEN_REPLICAS.replace("timeSlicing:\n", "timeSlicing:\n    renameByDefault: true\n")
OF_INSTANCES = """
version: v1
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]
"""
MANY_KINDS: Mapping[int, Sequence[str] | None] = {
    0: None,
    1: ("3g.20gb", "2g.10gb", "1g.5gb"),
    2: (),
}


@dataclass(frozen=True)
class Case:
    """A node and its settings."""

    profile: str
    flags: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    cuts: Mapping[int, Sequence[str] | None] = field(default_factory=dict)
    fields: Sequence[str] = ()


CASES = {
    "whole cards": Case("v100"),
    "ten replicas": Case("a100", file=TEN_REPLICAS),
    "another name": Case("v100", file=RENAMED),
    "volume mounts and device nodes": Case(
        "v100", {"device_list_strategy": "volume-mounts", "pass_device_specs": "true"}
    ),
    "a driver in a container": Case(
        "v100", {"driver_root": "/run/nvidia/driver", "pass_device_specs": "true"}
    ),
    "indexes, GDS and MOFED": Case(
        "v100", {"device_id_strategy": "index", "gds_enabled": "true", "mofed_enabled": "true"}
    ),
    "56 as cards": Case("a100-mig", {"mig_strategy": "single", "pass_device_specs": "true"}),
    "56 by name": Case("a100-mig", {"mig_strategy": "mixed"}),
    "instances of many kinds": Case(
        "a100-mig", {"mig_strategy": "mixed", "pass_device_specs": "true"}, cuts=MANY_KINDS
    ),
    "indexes of instances": Case(
        "a100-mig", {"mig_strategy": "mixed", "device_id_strategy": "index"}, cuts=MANY_KINDS
    ),
    "instances twice": Case("a100-mig", {"mig_strategy": "single"}, TEN_REPLICAS),
    "named instances twice": Case("a100-mig", file=OF_INSTANCES),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_the_same(case: Case, tmp_path: Path) -> None:
    """Names, ids, health, NUMA nodes; the answers for one id, and for some of every card."""
    flags = dict(case.flags)
    if case.file:
        flags["config_file"] = str(tmp_path / "config.yaml")
        (tmp_path / "config.yaml").write_text(case.file)
    async with both(case.profile, flags, case.cuts) as (theirs, rig):
        await wait_settled(theirs, rig)
        assert counted(rig.kubelet) == counted(theirs.kubelet)
        for resource in counted(theirs.kubelet):
            links = [kubelet.registry.links[resource] for kubelet in (theirs.kubelet, rig.kubelet)]
            devices, ours = [await listed(link) for link in links]
            assert ours == devices
            ids = sorted(devices)
            for chosen in (ids[:1], ids[:: max(1, len(ids) // 5)]):
                answers = [await answered(link, chosen) for link in links]
                assert answers[1] == answers[0]
            if "::" in ids[0] and not ids[0].startswith("MIG-"):
                for size in (1, 2, 4, 11):
                    choices = [await preferred(link, ids, size) for link in links]
                    assert over_cards(choices[1]) == over_cards(choices[0])


ON_SWITCHES = [
    f"cards.{card}.pci_{part}={card // of + 1}"
    for card in range(8)
    for part, of in (("switch", 2), ("socket", 4))
]


@pytest.mark.parametrize(
    ("profile", "fields"), [("dgx-1", ()), ("dgx-a100", ()), ("h200", ON_SWITCHES)]
)
async def test_the_same_cards_are_preferred(profile: str, fields: Sequence[str]) -> None:
    """R-703: by NVLinks and the PCI bus, of all cards and of those that some pods have left."""
    async with both(profile, {}, fields=fields) as (theirs, rig):
        await wait_settled(theirs, rig)
        links = [
            kubelet.registry.links["nvidia.com/gpu"] for kubelet in (theirs.kubelet, rig.kubelet)
        ]
        cards = [card.uuid for card in rig.cards.view().cards]
        for free in (cards, cards[1:], cards[::2], [*cards[:3], *cards[-2:]]):
            for size in range(1, len(free) + 1):
                choices = [await preferred(link, free, size) for link in links]
                assert choices[1] == choices[0], (size, [cards.index(each) for each in free])


async def wait_settled(theirs: NvidiaPlugin, rig: Rig) -> None:
    """Return when both kubelets have what the plugins offer."""
    await until(lambda: is_settled(theirs.kubelet) or theirs.has_ended, 20)
    assert not theirs.has_ended, theirs.log.read_text()[-2000:]

    def is_same() -> bool:
        return is_settled(rig.kubelet) and counted(rig.kubelet) == counted(theirs.kubelet)

    def told() -> str:
        return f"{counted(rig.kubelet)} {counted(theirs.kubelet)} {rig.log.read_text()[-2000:]}"

    await until(is_same, 20, told)


def over_cards(ids: Sequence[str]) -> list[int]:
    """How many replicas each card gives; which card gives one more is chance with theirs."""
    return sorted(Counter(each.partition("::")[0] for each in ids).values())
