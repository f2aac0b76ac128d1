"""The agent with shorter waits: `python -m tools.harness.hasty agent …`.

It ends a grant, probes cards and opens the simulated driver again after a tenth of the usual time: waits
for a kubelet that is slow to know its pods, or which spare a driver. What it waits for an answer is as ever.
So does the MPS daemon between its attempts (`… mps-daemon …`).
"""

from functools import partial
from pathlib import Path

from gpu_device_plugin.agent.reconcile import reconciler
from gpu_device_plugin.cards_tools import mps_daemon
from gpu_device_plugin.cli.main import main
from gpu_device_plugin.domain.grants import lifetime
from gpu_device_plugin.nvml import nvml_source

FASTER = 10.0
WAITS = (
    (reconciler, "PASS_SECONDS"),
    (lifetime, "KUBELET_SETTLE_SECONDS"),
    (lifetime, "ABSENT_SECONDS"),
)
PACE = ("wait_seconds", "probe_seconds", "reopen_seconds")
MPS_PACE = ("retry_seconds", "poll_seconds", "cards_seconds")

if __name__ == "__main__":
    for module, name in WAITS:
        setattr(module, name, getattr(module, name) / FASTER)
    usual = nvml_source.Deadlines()
    pace = {name: getattr(usual, name) / FASTER for name in PACE}
    setattr(nvml_source, "Deadlines", partial(nvml_source.Deadlines, **pace))  # noqa: B010 - mypy
    places = mps_daemon.MpsPlaces(Path(), "", "", Path())
    pace = {name: getattr(places, name) / FASTER for name in MPS_PACE}
    setattr(mps_daemon, "MpsPlaces", partial(mps_daemon.MpsPlaces, **pace))  # noqa: B010 - mypy
    main()
