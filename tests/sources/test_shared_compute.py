"""The document on shared GPUs with compute allocation, line by line, on a simulated node."""

import re
import time
from typing import Any

import pytest
from tests.e2e.tenants import is_about
from tests.sources.containers import Containers, apply
from tests.sources.documents import Walk, walk
from tools.harness.isolation.box import MIB
from tools.harness.isolation.shares import COPY_NS
from tools.harness.rig import CORE, COUNT, MEM, Rig, running_rig, slice_of
from tools.harness.waiting import until

from gpu_device_plugin.simulation import driver_library

NAME, NEXT = "cuda-sample", "on-the-next-card"
# The source's card, as its table shows it.
CARD = (
    *("persistence=1", "pci_bus=0", "pci_device=8"),
    *("temperature_celsius=33", "power_milliwatts=56000"),
)
SECONDS = 40
COPIES, MARGIN = 320, 10  # so many take a second without a cap; points
WORK = "work stream 1000000 600"  # kernels of 1 ms


@pytest.mark.long
async def test_the_document_on_shared_compute(containers: Containers) -> None:
    """Each step that needs no cluster; those that do are in tests/e2e/test_sources.py (R-113, R-115, R-117, R-118, R-120)."""
    with walk("shared_compute", "here") as step:
        async with running_rig() as rig:
            await check_limits(rig, step)
        async with running_rig(is_started=False) as rig:
            rig.cards.upgrade_driver("450.102.04")
            driver_library.set_fields(rig.cards.state, [f"cards.0.{field}" for field in CARD])
            await rig.serve(mode="cgpu")
            await check_node(rig, step)
            await check_job(rig, step, containers)


async def check_limits(rig: Rig, step: Walk) -> None:
    """What can be asked of a node, and of a card."""
    step("two kinds of jobs")
    refused = await rig.admit("memory-only", slice_of(2))
    assert "send the pod elsewhere with nodeSelector ack.node.gpu.schedule: cgpu" in refused.message
    values = step("percentages").data
    multiple, least, most = values["multiple"], values["minimum"], values["maximum"]
    for percent in (0, least, values["example"], most - 1, most, most + multiple):
        allowed = least <= percent <= most and percent % multiple == 0
        answer = await rig.admit(f"asks-{percent}", {MEM: 2, CORE: percent})
        assert answer.is_admitted is allowed, answer.message


async def check_node(rig: Rig, step: Walk) -> None:
    """Labels of a node that is new and of one that is there, and what it offers by them."""
    offered = {MEM: 60, CORE: 400, COUNT: 4}
    _, mode, _, placement = step("labels of the node pool").text.split()
    await rig.set_labels(schedule=mode, placement=placement)
    await rig.until_offered(offered, SECONDS)
    await rig.set_labels(schedule="cgpu", placement=placement)
    await rig.until_offered({**offered, CORE: 0}, SECONDS)

    key, _, mode = step("label of a node that is there").text.split()[-1].partition("=")
    assert key == "ack.node.gpu.schedule"
    await rig.admit("holder", slice_of(2))
    await rig.set_labels(schedule=mode, placement=placement)
    await until(lambda: rig.events("ModeSwitchRefused"), SECONDS)
    assert "default/holder" in rig.events("ModeSwitchRefused")[0]["message"]
    assert rig.kubelet.allocatable(CORE) == 0
    await rig.delete(rig.uid("holder"))
    await rig.until_offered(offered, SECONDS)
    shown = step("the node").data["status"]
    assert shown["allocatable"] == {key: str(n) for key, n in rig.allocatable().items()}
    assert shown["capacity"] == {key: str(rig.kubelet.capacity(key)) for key in (MEM, CORE, COUNT)}


async def check_job(rig: Rig, step: Walk, containers: Containers) -> None:
    """The job, and its memory and compute as nvidia-smi shows them."""
    job = step("the job").data
    assert (await apply(rig, job)).is_admitted
    worker = await containers.start(rig, NAME)
    _, free, total = worker("info")
    assert worker(f"alloc 0 {337 * MIB - (total - free)}") == [0]
    worker.tell(WORK)
    table = step("nvidia-smi in the pod")

    async def is_shown() -> bool:
        return table.shows(await containers.run(rig, NAME, "nvidia_smi"))

    await until(is_shown, SECONDS, lambda: table.meaning)
    (total_mib,) = re.findall(r"/ +(\d+)MiB", await containers.on_node(rig, "nvidia_smi"))
    assert int(total_mib) // 1024 == step("nvidia-smi on the node").data["GiB"]
    await check_several(rig, step, containers, job)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = (*container["command"][2:], "--num_batches=4")
    step("the log").check(await containers.run(rig, NEXT, "bandwidth", *words))
    begun = time.monotonic()
    await containers.run(rig, NEXT, "bandwidth", f"--num_batches={COPIES}")
    rate = 100 * COPIES * COPY_NS / 1e9 / (time.monotonic() - begun)
    # A loaded machine only makes it less.
    assert rate < step("the rate of the log").data["percent"] + MARGIN
    assert step("the end of the job").command.split()[-1] == NAME
    worker.kill()  # as a kubelet does before it forgets a pod
    await rig.delete(rig.uid(NAME))
    assert (await apply(rig, job, "successor")).is_admitted
    assert rig.card_of("successor") == rig.card_of(f"{NAME}-2")


async def check_several(rig: Rig, step: Walk, containers: Containers, job: dict[str, Any]) -> None:
    """So many jobs share a card, each of them shows what all of them use, and one more goes elsewhere."""
    values = step("several jobs on a card").data
    names = [NAME, *(f"{NAME}-{number}" for number in range(2, values["jobs"] + 1))]
    for name in (*names[1:], NEXT):
        assert (await apply(rig, job, name)).is_admitted
    assert {rig.card_of(name) for name in names} == {rig.card_of(NAME)} != {rig.card_of(NEXT)}
    for name in names[1:]:
        (await containers.start(rig, name)).tell(WORK)

    async def all_show_all() -> bool:
        tables = [await containers.run(rig, name, "nvidia_smi") for name in names]
        shown = [int(percent) for text in tables for percent in re.findall(r"(\d+)%", text)]
        return all(is_about(each, values["jobs"] * values["percent"]) for each in shown)

    await until(all_show_all, SECONDS)
