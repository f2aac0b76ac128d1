"""Evaluation without GPUs: the agent's answer brings the simulated driver into containers."""

import os
import platform
import subprocess
import sys

from tools.harness.rig import running_rig, slice_of

from gpu_device_plugin.simulation.simulated_node import STATE_NAME

PLACE = f"/usr/lib/{platform.machine()}-linux-gnu"
SHOW = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
count = ctypes.c_uint()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
for index in range(count.value):
    device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetUUID(device, uuid, 96) == 0
    print(uuid.value.decode())
"""


async def test_a_container_gets_driver_and_state_and_sees_its_cards_only() -> None:
    """With all that isolation mounts; two cards are two."""
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(schedule="cgpu")
        gpu = rig.root / "gpu"
        await rig.serve(nvml_library=None, simulator_dir=gpu)
        await rig.admit("p", slice_of(8), labels={"aliyun.com/gpu-count": "2"})
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        mounts = start.mounts
        assert mounts[f"{PLACE}/libnvidia-ml.so.1"] == (str(gpu / "libnvidia-ml.so.1"), True)
        assert mounts[f"{PLACE}/libcuda.so.1"] == (str(gpu / "libcuda.so.1"), True)
        assert mounts["/run/gpu-simulator/state"] == (str(gpu / STATE_NAME), False)
        assert "/etc/ld.so.preload" in mounts
        seen = subprocess.run(
            [sys.executable, "-c", SHOW, mounts[f"{PLACE}/libnvidia-ml.so.1"][0]],
            env={**os.environ, **start.env, "GPU_SIMULATOR_STATE": str(gpu / STATE_NAME)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert sorted(seen.stdout.split()) == sorted(rig.grant("p").devices)
        assert len(rig.grant("p").devices) == 2


async def test_with_real_cards_no_driver_is_mounted() -> None:
    """The container runtime brings it."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")
        assert not [inside for inside in start.mounts if inside.startswith("/usr/lib/")]
