"""A line of the child is read exactly or refused with its text; never guessed."""

import pytest

from gpu_device_plugin.domain.cards.nvml_reports import DriverMissing, Probe, Xid
from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.child_messages import decode, reports


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"kind":"beat"}', ()),
        (b'{"kind":"starting"}', ()),
        (b'{"kind":"xid","uuid":null,"code":79}', (Xid(None, 79),)),
        (b'{"kind":"xid","uuid":"a","code":8,"instances":["b"]}', (Xid("a", 8, ("b",)),)),
        (
            b'{"kind":"probes","cards":[{"uuid":"a","error":"GPU_IS_LOST"}]}',
            (Probe("a", "GPU_IS_LOST"),),
        ),
        (
            b'{"kind":"probes","cards":[{"uuid":"a","recovery_action":2},{"uuid":"b"}]}',
            (Probe("a", recovery_action=2), Probe("b")),
        ),
    ],
)
def test_a_line_becomes_its_reports(line: bytes, told: tuple[object, ...]) -> None:
    assert reports(decode(line)) == told


@pytest.mark.parametrize(
    ("error", "is_unloaded", "named"),
    [
        ("DRIVER_NOT_LOADED", True, "kernel driver is not loaded"),
        ("LIBRARY_NOT_FOUND", False, "the NVIDIA driver is not installed"),
        ("LIB_RM_VERSION_MISMATCH", False, "different versions"),
        ("ERROR_4711", False, "ERROR_4711"),
    ],
)
def test_why_there_is_no_driver_is_said_for_people(
    error: str, named: str, *, is_unloaded: bool
) -> None:
    (missing,) = reports(decode(b'{"kind":"no_driver","error":"%s"}' % error.encode()))
    assert isinstance(missing, DriverMissing)
    assert (missing.is_unloaded, named in missing.reason) == (is_unloaded, True)


@pytest.mark.parametrize(
    "line", [b"Segmentation fault", b'{"kind":"news"}', b'{"kind":"beat","more":1}', b"\xff", b""]
)
def test_anything_else_is_refused_with_its_text(line: bytes) -> None:
    with pytest.raises(NvmlError):
        decode(line)
