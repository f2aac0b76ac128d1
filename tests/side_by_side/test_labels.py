"""NVIDIA's gpu-feature-discovery and the agent give a node the same labels (R-740 to R-745)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.side_by_side.test_same import MANY_KINDS, OF_INSTANCES, RENAMED, TEN_REPLICAS, Case
from tools.harness.nvidia_plugin.programs import both
from tools.harness.rig import NODE, Rig
from tools.harness.waiting import until

pytestmark = pytest.mark.long

SINGLE: Mapping[str, str] = {"mig_strategy": "single"}
NOT_CUT: Mapping[int, Sequence[str] | None] = {0: ()}
WHOLE: Mapping[int, Sequence[str] | None] = {0: None}
CASES = {
    "whole cards": Case("v100"),
    "replicas": Case("t4", file=TEN_REPLICAS),
    "another name": Case("v100", file=RENAMED),
    "no strategy, cards in MIG mode": Case("a100-mig", cuts=WHOLE),
    "56 as cards": Case("a100-mig", SINGLE),
    "instances twice": Case("a100-mig", SINGLE, TEN_REPLICAS),
    "single, one card is whole": Case("a100-mig", SINGLE, cuts=WHOLE),
    "single, one card is not cut": Case("a100-mig", SINGLE, cuts=NOT_CUT),
    "single, no card in MIG mode": Case("a100", SINGLE),
    "instances of many kinds": Case("a100-mig", {"mig_strategy": "mixed"}, cuts=MANY_KINDS),
    "named instances twice": Case("a100-mig", file=OF_INSTANCES),
    "H200": Case("h200"),
    "an NVLink domain over nodes": Case(
        "h200", fields=[f"cards.{n}.clique=7" for n in range(1, 8)]
    ),
    "two such domains": Case("h200", fields=["cards.0.clique=7", "cards.1.clique=8"]),
    "a virtual GPU": Case("v100", fields=["cards.1.virtualization=2"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_the_same_labels(case: Case, tmp_path: Path) -> None:
    """R-740, R-741, R-742, R-743, R-744, R-745."""
    flags, machine = dict(case.flags), tmp_path / "product_name"
    machine.write_text("PowerEdge (R750)\n")
    if case.file:
        flags["config_file"] = str(tmp_path / "config.yaml")
        (tmp_path / "config.yaml").write_text(case.file)
    ours = {"gfd": "on", "gfd_no_timestamp": "true", "machine_type_file": machine}
    async with both(case.profile, flags, case.cuts, case.fields, **ours) as (theirs, rig):
        expected = await theirs.labels({**flags, "machine-type-file": str(machine)})
        for name in ("version", "branch"):
            expected.pop(f"nvidia.com/vgpu.host-driver-{name}", None)  # not written here
        await until(lambda: labels(rig) == expected, 20, lambda: difference(expected, labels(rig)))


def labels(rig: Rig) -> dict[str, str]:
    """NVIDIA's labels of the node."""
    found = rig.api.objects[f"/api/v1/nodes/{NODE}"]["metadata"].get("labels", {})
    return {name: value for name, value in found.items() if name.startswith("nvidia.com/")}


def difference(expected: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, object]:
    """Label -> theirs and ours, of those that are not equal."""
    names = sorted(expected.keys() | seen.keys())
    pairs = {name: (expected.get(name), seen.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
