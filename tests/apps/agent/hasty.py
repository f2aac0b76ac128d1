"""The agent for which a grant is over after seconds: `python -m tests.apps.agent.hasty agent …`.

It waits for a kubelet that is slow to know its pods; that of a test is not.
"""

from gpu_device_plugin.apps.agent.reconcile import reconciler
from gpu_device_plugin.cli.main import main
from gpu_device_plugin.domain import grant_lifetime, strays

FASTER = 10.0
WAITS = (
    (reconciler, "PASS_SECONDS"),
    (reconciler, "KUBELET_SETTLE_SECONDS"),
    (grant_lifetime, "KUBELET_SETTLE_SECONDS"),
    (strays, "KUBELET_SETTLE_SECONDS"),
    (grant_lifetime, "ABSENT_SECONDS"),
    (strays, "ABSENT_SECONDS"),
)

if __name__ == "__main__":
    for module, name in WAITS:
        setattr(module, name, getattr(module, name) / FASTER)
    main()
