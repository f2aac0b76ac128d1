"""A headless Chromium, driven by its own protocol: what is on the page, keys, and pictures of it."""

import asyncio
import base64
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tools.harness.waiting import until

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "ArrowDown": (40, ""), "ArrowRight": (39, "")}


class Browser:
    """One tab.

    Attributes:
        complaints: Errors and violations of the content policy that its console told.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def __call__(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, 60)

    async def open(self, url: str) -> None:
        """Go there; returns when the page has loaded."""
        self._loaded.clear()
        await self("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), 60)

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript is; a promise is waited for."""
        found = await self(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def press(self, *keys: str) -> None:
        """Press keys one by one, as a person does."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key[0].upper()), key))
            event = {"key": key, "windowsVirtualKeyCode": code, "text": text}
            await self("Input.dispatchKeyEvent", type="keyDown", **event)
            await self("Input.dispatchKeyEvent", type="keyUp", **event)

    async def looks(self, width: int, height: int, scheme: str) -> None:
        """Have a window of that size on a system of that colour scheme, light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path) -> None:
        """Write what is to be seen as a PNG."""
        found = await self("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def leave(self) -> None:
        """Listen no longer."""
        self._reading.cancel()

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if not answer.done():
                    answer.set_result(told.get("result", told))
            elif told["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(told["params"]["entry"]["text"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A new Chromium with one tab; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no browser: apt install chromium-headless-shell (or chromium)")
    profile = Path(tempfile.mkdtemp(prefix="chromium"))
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{await _port(profile)}"
            async with session.put(f"{base}/json/new?about:blank") as answer:
                tab = await answer.json()
            socket = await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=1 << 27)
            made = Browser(socket)
            for domain in ("Page", "Runtime", "Log"):
                await made(f"{domain}.enable")
            try:
                yield made
            finally:
                made.leave()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


async def _port(profile: Path) -> int:
    told = profile / "DevToolsActivePort"
    await until(lambda: told.is_file() and "\n" in told.read_text(), 20)
    return int(told.read_text().splitlines()[0])
