"""A queue that brings objects into a wanted state leaves the event loop to others."""

import asyncio

from tools.harness.api_server import running

from gpu_device_plugin.kubernetes.client.patches import PatchQueue

_OBJECTS = 1000


async def test_objects_that_are_as_they_should_be_are_compared_in_turn_and_keep_nobody_waiting() -> (
    None
):
    """Once each, in the order in which they were marked; between two of them others run."""
    compared: list[int] = []
    turns: list[int] = []
    async with running() as (_, api):
        queue: PatchQueue[int] = PatchQueue(api, compared.append, lambda _: None)
        for number in range(_OBJECTS):
            queue.mark(number)
            queue.mark(number)
        work = asyncio.ensure_future(queue.run())
        async with asyncio.timeout(60):
            while len(compared) < _OBJECTS:
                turns.append(len(compared))
                await asyncio.sleep(0)
        work.cancel()
    assert compared == list(range(_OBJECTS))
    assert len(turns) > _OBJECTS // 2
