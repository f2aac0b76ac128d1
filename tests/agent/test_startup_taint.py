"""A node that comes with a startup taint takes other pods only once its units are listed."""

from tools.harness.rig import NODE, Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.node_annotations import TAINT_ANNOTATION

_PATH = f"/api/v1/nodes/{NODE}"
_TAINTS = [
    {"key": "example.com/starting", "effect": "NoSchedule"},
    {"key": "example.com/other", "effect": "NoSchedule"},
]
_UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}


async def until_looked(rig: Rig) -> None:
    """Return when the agent has looked at the node as it is now: an Event of the same round says so."""
    rig.api.patch(_PATH, {"metadata": {"labels": _UPGRADE}})
    await until(lambda: rig.events("DriverUpgrade"), 30)


async def test_the_agent_removes_its_startup_taint_once_the_kubelet_counts_its_units() -> None:
    """All of them: with one resource less it stays."""
    async with running_rig(is_started=False) as rig:
        rig.api.patch(_PATH, {"spec": {"taints": _TAINTS}})
        await rig.serve(startup_taint="example.com/starting")
        amounts = {name: str(amount) for name, amount in rig.allocatable().items()}
        assert len(amounts) > 1
        rig.api.patch(_PATH, {"status": {"allocatable": dict([*amounts.items()][1:])}})
        await until_looked(rig)
        assert rig.api.objects[_PATH]["spec"]["taints"] == _TAINTS

        rig.api.patch(_PATH, {"status": {"allocatable": amounts}})
        await until(lambda: rig.api.objects[_PATH]["spec"]["taints"] == _TAINTS[1:], 30)
        assert rig.annotations()[TAINT_ANNOTATION] == "example.com/starting"


async def test_without_the_setting_every_taint_stays() -> None:
    async with running_rig(is_started=False) as rig:
        rig.api.patch(_PATH, {"spec": {"taints": _TAINTS}})
        await rig.serve()
        amounts = {name: str(amount) for name, amount in rig.allocatable().items()}
        rig.api.patch(_PATH, {"status": {"allocatable": amounts}})
        await until_looked(rig)
        assert rig.api.objects[_PATH]["spec"]["taints"] == _TAINTS
