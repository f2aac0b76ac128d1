"""The admin socket, `<run-dir>/agent.sock`, for a person on the node.

One JSON object per line in, one out; only root can open the socket. The commands `why` and
`recover` of the CLI use it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gpu_device_plugin.errors import EdgeError, GpuPluginError, NotKnownError
from gpu_device_plugin.kubernetes.client.foreign_text import without_controls

if TYPE_CHECKING:  # the command `why` loads no agent
    from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
    from gpu_device_plugin.agent.state.event_recorder import EventRecorder
    from gpu_device_plugin.agent.state.ledger_store import LedgerStore
    from gpu_device_plugin.domain.node.state import StateReader

SOCKET_NAME = "agent.sock"
_ANSWER_SECONDS = 5.0
_LINE_BYTES = 1 << 20
_CHECK_SECONDS = 5.0
_log = structlog.get_logger("admin_socket")

Command = Callable[[Mapping[str, Any]], str | Awaitable[str]]


class AdminSocket:
    """Answers questions while the agent runs."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self._path = path
        self._commands = commands

    async def run(self) -> None:
        """Serve until cancelled; if the socket is removed or cannot be made, try again."""
        reported = ""
        while True:
            try:
                await self._serve_while_there()
                reported = ""
            except OSError as error:
                if str(error) != reported:
                    _log.error("no admin socket", socket=str(self._path), error=str(error))
                reported = str(error)
            await asyncio.sleep(_CHECK_SECONDS)

    async def _serve_while_there(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._path, limit=_LINE_BYTES)
        try:
            self._path.chmod(0o600)
            while self._path.is_socket():
                await asyncio.sleep(_CHECK_SECONDS)
        finally:
            server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.LimitOverrunError, ValueError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                line = await reader.readline()
            writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
            await writer.drain()

    async def _answer(self, line: bytes) -> dict[str, str | bool]:
        try:
            question = json.loads(line)
            command = str(question.get("command", ""))
        except (ValueError, AttributeError):
            return {"error": "wanted one JSON object on one line"}
        answerer = self._commands.get(command)
        if answerer is None:
            return {"error": f"unknown command {command!r}; known: {', '.join(self._commands)}"}
        try:
            told = answerer(question)
            return {"text": told if isinstance(told, str) else await told}
        except GpuPluginError as error:
            return {"error": str(error), "is_unknown": isinstance(error, NotKnownError)}


async def ask(path: Path, question: Mapping[str, Any]) -> str:
    """The agent's answer to a question. NotKnownError: it knows nothing of what is asked for."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
            with closing(writer):
                writer.write(json.dumps(question).encode() + b"\n")
                await writer.drain()
                answer = json.loads(without_controls(await reader.readline()))
    except (OSError, ValueError, TimeoutError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise EdgeError(
            f"{path}: no agent answers there: {reason}; ask on the node itself (or in its agent's "
            f"pod), as root, with the agent's --run-dir"
        ) from error
    if "error" in answer:
        kind = NotKnownError if answer.get("is_unknown") else EdgeError
        raise kind(str(answer["error"]))
    return str(answer.get("text", ""))


@dataclass(eq=False)
class AdminCommands:
    """Answers the CLI's commands through the admin socket."""

    recorder: EventRecorder
    ledger_store: LedgerStore
    cards: CardInventory
    state: StateReader

    def by_name(self) -> Mapping[str, Command]:
        return {"why": self._why, "recover": self._recover}

    def _why(self, question: Mapping[str, Any]) -> str:
        namespace, name = str(question.get("namespace", "")), str(question.get("name", ""))
        return self.recorder.why(namespace, name, self.ledger_store.live.living)

    def _recover(self, question: Mapping[str, Any]) -> str:
        wanted = str(question.get("card", ""))
        shown = [card for card in self.state().cards if card.is_shown]
        card = next((c for c in shown if wanted in (c.uuid, str(c.index))), None)
        if not self.cards.recover(card.uuid if card else wanted):
            known = ", ".join(f"{c.index} ({c.uuid})" for c in shown) or "none"
            raise NotKnownError(f"no card {wanted!r} on this node; known: {known}")
        if card is None:
            return f"card {wanted}: it is not there any more; what was known of it is removed\n"
        return f"card {wanted}: its faults are cleared; a fault that is still there takes it out again\n"
