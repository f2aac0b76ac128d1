"""Nothing that a tenant writes is obeyed by the terminal of the person who reads it."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.test_overview import Cluster, agents, asking_devices, ready
from tests.cli.test_overview import cluster as cluster
from tests.cli.test_overview import whole_cards as whole_cards
from tools.harness.api_server import Json, status
from tools.harness.objects import node, pod

from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.kubernetes.client.foreign_text import without_controls

CLIPBOARD, CLEAR, C1, BACKWARDS = "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J", "\x9b2J", "\u202e"
HOSTILE = f"out {CLIPBOARD}{CLEAR}{C1}{BACKWARDS}\x7f\x08\r of memory"
FORBIDDEN = {*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 160)), BACKWARDS}


def is_harmless(text: str) -> bool:
    """Whether a terminal obeys nothing of it but the end of a line."""
    return not FORBIDDEN & set(text)


def ended(name: str) -> Json:
    """A container that ended with a hostile termination message."""
    return {"name": name, "state": {"terminated": {"exitCode": 1, "message": HOSTILE}}}


async def test_why_shows_hostile_text_as_signs(cluster: Cluster) -> None:
    """In termination messages, Events, reasons, names and annotations."""
    asking = pod("late", 2, 30, annotations={"gpu-device-plugin/placement": HOSTILE})
    told = {"message": HOSTILE, "reason": HOSTILE, "containerStatuses": [ended("a")]}
    await cluster.add(asking, "Failed", **told)
    await cluster.say("late", "Failed", HOSTILE, HOSTILE)
    said = (await cluster.run("why", "ns/late", columns=400)).output

    assert is_harmless(said), ascii(said)
    assert said.count("of memory") >= 3


@pytest.mark.parametrize("verb", ["doctor", "map", "top"])
async def test_every_verb_shows_hostile_text_as_signs(cluster: Cluster, verb: str) -> None:
    """JSON inside an annotation has escapes of its own."""
    await agents(cluster)
    strange = ready(node("gpu-a"))
    cards = json.loads(strange["metadata"]["annotations"]["gpu-device-plugin/cards"])
    cards["cards"][0]["uuid"] = HOSTILE
    strange["metadata"]["annotations"]["gpu-device-plugin/cards"] = json.dumps(cards)
    strange["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": HOSTILE}]
    await cluster.server.put("/api/v1/nodes/gpu-a", strange)
    said = (await cluster.run(verb, columns=400)).output

    assert is_harmless(said), ascii(said)


async def test_half_of_a_character_in_an_annotation_ends_no_verb(whole_cards: Cluster) -> None:
    """An escape of JSON, which any tenant may write: neither a terminal nor a file can be sent it."""
    await whole_cards.add(asking_devices("half", 1, "gpu-c", "\ud800"))
    for form in ([], ["-o", "json"]):
        assert "train" in (await whole_cards.run("map", *form)).output


async def test_an_error_of_the_api_server_is_harmless_too(cluster: Cluster) -> None:
    """An admission webhook of somebody else can word it."""
    cluster.server.fault = lambda _: status(403, HOSTILE)
    with pytest.raises(Exception, match="of memory") as error:
        await cluster.run("doctor")

    assert is_harmless(str(error.value))


async def test_what_the_agent_answers_on_its_node_is_harmless(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"text": HOSTILE}).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "agent.sock")
    async with server:
        said = await ask(tmp_path / "agent.sock", {"command": "why"})

    assert is_harmless(said)


@pytest.mark.parametrize("depth", [1, 2])
def test_json_stays_json_however_deep_a_string_is_in_strings(depth: int) -> None:
    value: object = {"text": HOSTILE, "path": 'a\\b "c" \n\t<d>'}
    text = json.dumps(value)
    for _ in range(depth - 1):
        text = json.dumps(text)
    found: object = without_controls(text.encode()).decode()
    for _ in range(depth):
        assert isinstance(found, str)
        found = json.loads(found)

    assert isinstance(found, dict)
    assert found["path"] == 'a\\b "c" \n\t<d>'
    # Short escapes of an inner JSON are left: what draws on a terminal drops them.
    left = found["text"].translate(dict.fromkeys(map(ord, "\b\r"))) if depth > 1 else found["text"]
    assert is_harmless(left)
