"""A cluster to look at: ``make cluster`` starts one, with images on its node, and a shell in it.

With arguments it runs that command in place of the shell: ``tests/e2e/run.sh -- .venv/bin/python -m
tests.e2e.playground COMMAND ...``. The cluster ends with it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.agent_image import agent_image
from tests.e2e.conftest import STATE
from tests.e2e.quick_start import ROOT, SMI_IMAGE, load_images, without_gpus
from tests.nvidia_smi import download
from tools.harness.cluster.binaries import provide_helm
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.layout import Layout


def main(command: Sequence[str]) -> int:
    """Run the command, or a shell, beside a cluster; return its exit code."""
    network = int(os.environ["GPU_DEVICE_PLUGIN_E2E_NETWORK"])
    sys.stdout.write(
        "==> a cluster, and the images on its node; minutes where the agent's is not built yet\n"
    )
    sys.stdout.flush()
    logs = ROOT / "build" / "e2e" / "playground"
    with tempfile.TemporaryDirectory() as place, Cluster(Layout(STATE, logs)) as cluster:
        smi = download(Path(place), network)
        image = agent_image(network)
        image.load_into(cluster.node)
        load_images(cluster, image, smi, SMI_IMAGE)
        first = (cluster.binaries.kubectl, provide_helm(), Path(sys.executable))
        path = os.pathsep.join(
            [*(str(Path(program).parent) for program in first), os.environ["PATH"]]
        )
        told = {"KUBECONFIG": str(cluster.admin_kubeconfig), "PATH": path, "PS1": "cluster$ "}
        if not command:
            sys.stdout.write(
                f"\nKubernetes {cluster.binaries.kubernetes_version}, node {cluster.node_name}, no GPU; logs: {logs}"
                "\nkubectl, helm and kubectl gpu work here; `exit` ends the cluster. README's commands, to paste:"
                f"\n\n{without_gpus(smi.driver_version)}\n"
            )
            sys.stdout.flush()
        shell = ["bash", "--norc", "--noprofile"]
        return subprocess.run(
            list(command) or shell, cwd=ROOT, env={**os.environ, **told}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
