"""Who may read the page: whoever may list what it shows. The API server decides."""

import asyncio
import hashlib
from collections import OrderedDict
from http import HTTPStatus

from gpu_device_plugin.cluster.access_review import Right, is_allowed, user_of
from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.web.page.server import Refusal

NEEDED = (Right("list", "nodes"), Right("list", "pods"), Right("list", "events"))
_MOST_KEPT = 1000
_AT_ONCE = 8
_LONGEST_TOKEN = 1 << 14
_NO_TOKEN = Refusal(HTTPStatus.UNAUTHORIZED, "a bearer token of this cluster is needed")


class Access:
    """Asks the API server, and keeps each answer for some seconds; never the token itself."""

    def __init__(self, api: ApiServer, kept_seconds: float) -> None:
        self._api = api
        self._kept_seconds = kept_seconds
        self._answers: OrderedDict[bytes, tuple[float, Refusal | None]] = OrderedDict()
        # Guesses at tokens must not become a flood at the API server.
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def refusal(self, token: str) -> Refusal | None:
        """Why who shows this token may not read; None if they may.

        Without an answer of the API server nobody may: a right may have been taken away.
        """
        if not token or len(token) > _LONGEST_TOKEN:
            return _NO_TOKEN
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        now = asyncio.get_running_loop().time()
        until, answer = self._answers.get(key, (0.0, None))
        if now < until:
            return answer
        try:
            async with self._gate:
                answer = await self._asked(token)
        except ClusterError as error:
            text = f"your token cannot be checked now: {error}"
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, text)
        self._answers[key] = (now + self._kept_seconds, answer)
        self._answers.move_to_end(key)
        while len(self._answers) > _MOST_KEPT:
            self._answers.popitem(last=False)
        return answer

    async def _asked(self, token: str) -> Refusal | None:
        user = await user_of(self._api, token)
        if user is None:
            text = "the API server does not accept this token; it may have expired"
            return Refusal(HTTPStatus.UNAUTHORIZED, text)
        allowed = await asyncio.gather(*(is_allowed(self._api, user, each) for each in NEEDED))
        lacking = [str(r) for r, is_granted in zip(NEEDED, allowed, strict=True) if not is_granted]
        if not lacking:
            return None
        text = f"{user.username} may not {', '.join(lacking)} in all namespaces"
        return Refusal(HTTPStatus.FORBIDDEN, text)
