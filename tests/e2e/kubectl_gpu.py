"""`kubectl gpu` against the cluster of these tests, with the admin's kubeconfig only."""

import os
import subprocess
import sys

from tools.harness.cluster.cluster import Cluster


def kubectl_gpu(cluster: Cluster, *words: str) -> str:
    """What a command of it prints."""
    program = "from gpu_device_plugin.cli.overview import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(
        [*command, "--kubeconfig", str(cluster.admin_kubeconfig)],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
