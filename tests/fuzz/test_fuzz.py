"""Whatever somebody else writes, a parser answers with a value or with one of this project's errors.

`make fuzz` runs the same for as long as wanted; an input that fails there belongs into `corpus`.
"""

import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from tests.fuzz.mutations import examples, mutated
from tests.fuzz.programs import PROGRAMS, Program
from tests.fuzz.targets import TARGETS

from gpu_device_plugin.errors import GpuPluginError

COUNT = int(os.environ.get("GPU_DEVICE_PLUGIN_FUZZ", "0"))
SETTINGS = settings(
    max_examples=COUNT or 200,
    deadline=None,
    database=None,
    derandomize=not COUNT,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("target", TARGETS)
def test_examples_are_read_or_refused(target: str) -> None:
    """And at least one is a value, so that what is like it reaches all of the parser."""
    values = []
    for example in examples(target):
        with suppress(GpuPluginError):
            values.append(TARGETS[target](example))

    assert values


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_like_them_is_read_or_refused(target: str) -> None:
    @SETTINGS
    @given(mutated(examples(target)))
    def reads(content: bytes) -> None:
        with suppress(GpuPluginError):
            TARGETS[target](content)

    reads()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_library_reads_no_byte_too_far(name: str) -> None:
    """Under the address and undefined-behaviour sanitizers."""
    with Program.compiled(name) as program:

        @SETTINGS
        @given(mutated(examples(name)))
        def reads(content: bytes) -> None:
            program.read(content)

        for example in examples(name):
            program.read(example)
        reads()
