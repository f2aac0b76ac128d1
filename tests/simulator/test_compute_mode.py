"""The compute mode of a card decides how many processes may use it, and whether through MPS."""

from pathlib import Path

from tests.simulator.programs import hear, run, started

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_UNAVAILABLE = 46
_OPEN = """
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = ctypes.c_void_p()
def opened(device=0):
    return cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
"""
_HOLD = _OPEN + "say(opened()); sys.stdin.read()"
_TRY = _OPEN + "say([opened(), opened(1)])"


def _set(node: SimulatedNode, mode: int) -> object:
    program = f"""
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
say([error_of(nvml.nvmlDeviceSetComputeMode, card, {mode}), nvml.nvmlDeviceGetComputeMode(card)])
"""
    return run(node, program)


def test_an_exclusive_card_has_one_process_and_the_next_after_its_end(node: SimulatedNode) -> None:
    """Its own second context is no second process; the neighbour card is not touched."""
    assert _set(node, 3) == [0, 3]
    assert node.view().cards[0].compute_mode == 3
    with started(node, _OPEN + "say([opened(), opened()]); sys.stdin.read()") as holder:
        assert hear(holder) == [0, 0]
        assert run(node, _TRY) == [_UNAVAILABLE, 0]
    assert run(node, _TRY) == [0, 0]


def test_a_prohibited_card_has_none_and_a_mode_that_is_gone_is_refused(node: SimulatedNode) -> None:
    """EXCLUSIVE_THREAD is 1; drivers no longer have it."""
    assert _set(node, 2) == [0, 2]
    assert run(node, _TRY) == [_UNAVAILABLE, 0]
    assert _set(node, 1) == [3, 2]
    assert _set(node, 0) == [0, 0]
    assert run(node, _TRY) == [0, 0]


def test_clients_of_an_mps_server_share_an_exclusive_card(
    node: SimulatedNode, tmp_path: Path
) -> None:
    """And nobody else: neither beside a client nor a client beside another process."""
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    (pipe / "nvidia-cuda-mps-control.pid").touch()
    through = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    _set(node, 3)
    with started(node, _HOLD, **through) as client:
        assert hear(client) == 0
        assert run(node, _TRY, **through) == [0, 0]
        assert run(node, _TRY) == [_UNAVAILABLE, 0]
        listed = """
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
say([len(nvml.nvmlDeviceGetMPSComputeRunningProcesses(card)),
     len(nvml.nvmlDeviceGetComputeRunningProcesses(card))])
"""
        assert run(node, listed) == [1, 1]
    with started(node, _HOLD) as other:
        assert hear(other) == 0
        assert run(node, _TRY, **through) == [_UNAVAILABLE, 0]
