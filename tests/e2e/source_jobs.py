"""The jobs of the source documents, as samples/ack publishes them; only image and command are ours."""

from pathlib import Path
from typing import Any

import yaml
from tools.harness.cluster.images import GPU_TEST

CUDA_SAMPLE = Path("samples/ack/cuda-sample.yaml")
BINPACK = Path("samples/ack/binpack.yaml")


def source_job(sample: Path, script: str, image: str = GPU_TEST) -> dict[str, Any]:
    """The object of a sample, with a shell script in one of our images in place of the vendors'."""
    job: dict[str, Any] = yaml.safe_load(sample.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {"image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    return job
