"""A headless Chromium or Firefox: what is on the page, keys, and pictures of it.

Chromium is driven by its own protocol, Firefox by WebDriver BiDi, without a driver between.
"""

import asyncio
import base64
import itertools
import json
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
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowDown": (40, ""),
    "ArrowRight": (39, ""),
    "Tab": (9, ""),
}


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
        self._tab = ""
        self._reading = asyncio.ensure_future(self._read())

    async def __call__(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, 300)

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

    async def drawn(self) -> None:
        """Wait for two frames: what was out of view has its own size from then on, not the one assumed for it."""
        await self.value(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

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
        await self._has_looks(width, height, scheme)

    async def _has_looks(self, width: int, height: int, scheme: str) -> None:
        """The page has them some time after the protocol's answer."""
        size = f"innerWidth === {width} && innerHeight === {height}"
        colours = f"matchMedia('(prefers-color-scheme: {scheme})').matches"
        await until(lambda: self.value(f"{size} && {colours}"))
        await self.drawn()

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
            else:
                self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        """An event."""
        if told["method"] == "Page.loadEventFired":
            self._loaded.set()
        elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.complaints.append(told["params"]["entry"]["text"])
        elif told["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(told["params"]["exceptionDetails"]))


FIREFOXES = ("firefox-esr", "firefox")
_CODES = {
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "ArrowDown": "\ue015",
    "ArrowRight": "\ue014",
    "Tab": "\ue004",
}


class FirefoxTab(Browser):
    """One tab of a Firefox; it is always light, and its window never has the focus: the protocol sets neither."""

    async def __call__(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        answer = await super().__call__(method, **parameters)
        assert "error" not in answer, answer
        return answer

    async def start(self) -> None:
        """Begin a session."""
        await self("session.new", capabilities={})
        tree = await self("browsingContext.getTree")
        self._tab = tree["contexts"][0]["context"]
        await self("session.subscribe", events=["log.entryAdded"])

    async def open(self, url: str) -> None:
        """As in the other browser."""
        await self("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    async def value(self, expression: str) -> Any:
        """As in the other browser."""
        whole = f"Promise.resolve({expression}).then(it => JSON.stringify(it ?? null))"
        target = {"context": self._tab}
        found = await self("script.evaluate", expression=whole, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    async def press(self, *keys: str) -> None:
        """As in the other browser."""
        strokes = [
            {"type": kind, "value": _CODES.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        await self("input.performActions", context=self._tab, actions=actions)

    async def looks(self, width: int, height: int, scheme: str) -> None:
        """As in the other browser, in light colours only."""
        if scheme != "light":
            pytest.skip("WebDriver BiDi sets no colour scheme")
        size = {"width": width, "height": height}
        await self("browsingContext.setViewport", context=self._tab, viewport=size)
        await self._has_looks(width, height, scheme)

    async def picture(self, path: Path) -> None:
        """As in the other browser, which takes those of the docs."""

    def _note(self, told: dict[str, Any]) -> None:
        if told["method"] == "log.entryAdded" and told["params"]["level"] == "error":
            self.complaints.append(told["params"]["text"])


@asynccontextmanager
async def browser(kind: str = "chromium") -> AsyncIterator[Browser]:
    """A new browser with one tab; the test is skipped where there is none."""
    programs = FIREFOXES if kind == "firefox" else PROGRAMS
    program = next(filter(None, map(shutil.which, programs)), None)
    if program is None:
        pytest.skip(f"no {kind}: apt install {programs[0]}")
    profile = Path(tempfile.mkdtemp(prefix=kind))
    process = await asyncio.create_subprocess_exec(
        program,
        *_options(kind, profile),
        env={**os.environ, "HOME": str(profile)},
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with aiohttp.ClientSession() as session:
            connect = _firefox_tab if kind == "firefox" else _chromium_tab
            made = await connect(session, profile)
            try:
                yield made
            finally:
                made.leave()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _options(kind: str, profile: Path) -> list[str]:
    options = ["--headless", "--remote-debugging-port=0"]
    if kind == "firefox":
        # 1 is light, whatever the system has.
        scheme = 'user_pref("layout.css.prefers-color-scheme.content-override", 1);'
        (profile / "user.js").write_text(scheme)
        options += ["--no-remote", "--profile", str(profile)]
    else:
        options += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--hide-scrollbars", f"--user-data-dir={profile}"]
    return options


async def _chromium_tab(session: aiohttp.ClientSession, profile: Path) -> Browser:
    told = profile / "DevToolsActivePort"
    await until(lambda: told.is_file() and "\n" in told.read_text(), 20)
    base = f"http://127.0.0.1:{int(told.read_text().splitlines()[0])}"
    async with session.put(f"{base}/json/new?about:blank") as answer:
        tab = await answer.json()
    made = Browser(await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=1 << 27))
    for domain in ("Page", "Runtime", "Log"):
        await made(f"{domain}.enable")
    return made


async def _firefox_tab(session: aiohttp.ClientSession, profile: Path) -> Browser:
    told = profile / "WebDriverBiDiServer.json"
    await until(lambda: told.is_file() and told.read_text().rstrip().endswith("}"), 60)
    port = json.loads(told.read_text())["ws_port"]
    url = f"ws://127.0.0.1:{port}/session"
    made = FirefoxTab(await session.ws_connect(url, max_msg_size=1 << 27))
    await made.start()
    return made
