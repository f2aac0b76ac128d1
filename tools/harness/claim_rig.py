"""The real agent process with allocation API dra; claims are allocated as kube-scheduler does it."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tools.harness.claim_kubelet import ClaimKubelet
from tools.harness.rig import CORE, COUNT, MEM, NODE, Rig, running_rig
from tools.harness.waiting import until

GROUP = "/apis/resource.k8s.io/v1"
SLICE = f"{GROUP}/resourceslices/{NODE}-gpu-device-plugin"
CLAIMS = f"{GROUP}/resourceclaims"
ALL, NOTHING = ({MEM: 15 * n, CORE: 100 * n, COUNT: n} for n in (4, 0))
CARDS = {f"gpu-{n}" for n in range(4)}


@asynccontextmanager
async def claim_rig() -> AsyncIterator[Rig]:
    """A node whose label says dra, with four cards offered for claims."""
    async with running_rig(is_started=False) as rig:
        await start_with_claims(rig)
        yield rig


async def start_with_claims(rig: Rig) -> None:
    """Start it, and return when four cards are offered for claims."""
    await rig.set_labels(allocation_api="dra")
    await start(rig)
    await until(lambda: len(devices(rig)) == 4, 30)


async def start(rig: Rig) -> None:
    await rig.start_agent(cdi_dir=rig.root / "cdi")


async def kill(rig: Rig) -> None:
    assert await rig.stop_agent(signal.SIGKILL) == -signal.SIGKILL


def kubelet(rig: Rig) -> ClaimKubelet:
    """The kubelet's side of claims, on the directory of the stand-in kubelet."""
    return ClaimKubelet(rig.root / "k")


def devices(rig: Rig) -> set[str]:
    """What is offered, as the scheduler sees it."""
    of = rig.api.objects.get(SLICE, {"spec": {"devices": []}})["spec"]["devices"]
    return {each["name"] for each in of}


async def allocate(rig: Rig, name: str, card: int) -> None:
    """What the scheduler writes into a claim of 2 units and 30 %."""
    result = {
        "driver": "gpu-device-plugin", "pool": NODE, "device": f"gpu-{card}", "request": "slice",
        "consumedCapacity": {"memory": "2Gi", "cores": "30"},
    }  # fmt: skip
    pod = {"name": f"p-{name}", "uid": f"uid-p-{name}"}
    content = {
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}",
            "ownerReferences": [{"kind": "Pod", **pod}],
        },
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", **pod}],
        },
    }  # fmt: skip
    await rig.api.put(claim_path(name), content)


def claim_path(name: str) -> str:
    return f"{GROUP}/namespaces/default/resourceclaims/{name}"


async def prepare(rig: Rig, name: str) -> str:
    """The kubelet prepares it; the error, or ""."""
    return str((await kubelet(rig).prepare(name))[f"uid-{name}"].error)


async def end(rig: Rig, name: str) -> None:
    """The pod's containers have ended, and its claim is deleted."""
    assert not (await kubelet(rig).unprepare(name))[f"uid-{name}"].error
    if claim_path(name) in rig.api.objects:
        await rig.api.delete(claim_path(name))


def held(rig: Rig) -> dict[str, tuple[str, Any]]:
    """Claim -> card and slice of its grant on disk, where its CDI file names the slice."""
    found = {}
    for grant in rig.grants():
        path = rig.root / "cdi" / f"gpu-device-plugin-{grant.holder.claim}.json"
        assert (
            json.loads(path.read_text())["annotations"]["gpu-device-plugin/slice"] == grant.slice_id
        )
        found[grant.holder.claim.removeprefix("uid-")] = (grant.devices[0], grant.slice_id)
    return found
