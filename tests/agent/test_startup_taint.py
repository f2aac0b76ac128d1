"""A node that comes with a startup taint takes other pods only once its units are listed."""

from tools.harness.api_server import ApiRequest
from tools.harness.rig import NODE, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.node_annotations import TAINT_ANNOTATION

_PATH = f"/api/v1/nodes/{NODE}"
_TAINTS = [
    {"key": "example.com/starting", "effect": "NoSchedule"},
    {"key": "example.com/other", "effect": "NoSchedule"},
]


async def test_the_agent_removes_its_startup_taint_once_the_kubelet_counts_its_units() -> None:
    async with running_rig(is_started=False) as rig:
        rig.api.patch(_PATH, {"spec": {"taints": _TAINTS}})
        counted: list[bool] = []

        def note(request: ApiRequest) -> None:
            if request.method == "PATCH" and "spec" in request.body:
                counted.append("allocatable" in rig.api.objects[_PATH].get("status", {}))

        rig.api.fault = note
        await rig.serve(startup_taint="example.com/starting")
        amounts = {name: str(amount) for name, amount in rig.allocatable().items()}
        rig.api.patch(_PATH, {"status": {"allocatable": amounts}})
        await until(lambda: rig.api.objects[_PATH]["spec"]["taints"] == _TAINTS[1:], 30)
        assert counted == [True]
        assert rig.annotations()[TAINT_ANNOTATION] == "example.com/starting"


async def test_without_the_setting_every_taint_stays() -> None:
    async with running_rig(is_started=False) as rig:
        rig.api.patch(_PATH, {"spec": {"taints": _TAINTS}})
        await rig.serve()
        await until(lambda: "gpu-device-plugin/cards" in rig.annotations(), 10)
        assert rig.api.objects[_PATH]["spec"]["taints"] == _TAINTS
