"""Clients of the driver that people install from PyPI do in a slice what they do on a card.

They run on a simulated card, which computes nothing: what is compared is what they are answered.
"""

import json
from pathlib import Path

import pytest
from tests.clients.conftest import HERE, SLICE_MIB, Client
from tools.harness.isolation.box import Box

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param("bindings.py", "CUBIN 1", id="cuda-bindings"),
        pytest.param("core.py", "ParamInfo(offset=8, size=4)", id="cuda-core"),
        pytest.param("numba_kernel.py", "499500.0 NVIDIA H200", id="numba-cuda"),
        pytest.param("tiny.py", "[1.0, 2.0, 3.0]", id="tinygrad"),
    ],
)
def test_a_client_is_answered_the_same_in_a_slice(client: Client, program: str, said: str) -> None:
    """Whatever it prints of results, names, times and errors."""
    words = (client.python, HERE / "programs" / program)
    alone = client.native(*words, DEV="CUDA")

    assert said in alone
    assert client.sliced(*words, DEV="CUDA") == alone


def test_pycuda_is_answered_the_same_in_a_slice(built_python: Path, box: Box) -> None:
    """Built here against the simulated driver; it knows the launch calls of CUDA 3 too."""
    client = Client(built_python, box)
    words = (built_python, HERE / "programs" / "cuda_driver.py")
    alone = client.native(*words)

    assert "cuModuleGetFunction failed: named symbol not found" in alone
    assert client.sliced(*words) == alone


def test_gpustat_shows_the_slice(client: Client) -> None:
    """The card's name, and the slice's memory for the card's."""
    words = (client.python, "-m", "gpustat", "--json")
    (alone,) = json.loads(client.native(*words))["gpus"]
    (sliced,) = json.loads(client.sliced(*words))["gpus"]

    assert (alone["memory.total"], sliced["memory.total"]) == (143771, SLICE_MIB)
    assert sliced["name"] == alone["name"] == "NVIDIA H200"


def test_nvitop_shows_the_slice(client: Client) -> None:
    """Its one page, without an error of a function that it could not find."""
    words = (client.python, "-m", "nvitop", "-1")
    alone, sliced = client.native(*words), client.sliced(*words)

    assert "140.4GiB" in alone
    assert "4096MiB" in sliced
    assert "N/A / N/A" not in alone + sliced
