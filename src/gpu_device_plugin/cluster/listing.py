"""Objects of the Kubernetes API, read once: for commands, not for what follows the cluster."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from gpu_device_plugin.cluster.api import Answer, ApiServer, Request
from gpu_device_plugin.cluster.foreign_text import decode
from gpu_device_plugin.cluster.wire import Bare, ListOf
from gpu_device_plugin.errors import AccessError, ClusterError, ThrottledError

_PAGE = "500"
_MOST_WAITS = 5
_Object = TypeVar("_Object", bound=Bare)


async def list_items(
    api: ApiServer, path: str, kind: type[_Object], query: Mapping[str, str] | None = None
) -> AsyncIterator[_Object]:
    """Every object of a list, page by page.

    Raises:
        ClusterError: The API server does not serve the list.
    """
    wanted = {"limit": _PAGE, **(query or {})}
    proceed: dict[str, str] = {}
    while True:
        answer = await _asked(api, Request("GET", path, {**wanted, **proceed}))
        page: ListOf[_Object] = decoded(served(answer, path), ListOf[kind])  # type: ignore[valid-type]
        for item in page.items or ():
            yield item
        if not page.metadata.next_page:
            return
        proceed = {"continue": page.metadata.next_page}


async def read_object(api: ApiServer, path: str, kind: type[_Object]) -> _Object | None:
    """The object at `path`, or None where there is none.

    Raises:
        ClusterError: The API server does not serve it.
    """
    answer = await _asked(api, Request("GET", path))
    if answer.is_not_found:
        return None
    found: _Object = decoded(served(answer, path), kind)
    return found


async def _asked(api: ApiServer, request: Request) -> Answer:
    """The answer; a server that asks us to come later is asked again then, as kubectl does it.

    Raises:
        ClusterError: As for `ApiServer.call`.
    """
    for _ in range(_MOST_WAITS):
        with suppress(ThrottledError):
            return await api.call(request)
        await api.let(request)
    return await api.call(request)


def served(answer: Answer, path: str) -> Answer:
    """The answer, if it is a success.

    Raises:
        AccessError: We may not do this.
        ClusterError: The API server refuses for another reason.
    """
    if answer.status == 403:
        raise AccessError(f"{path}: {answer.text}")
    if not answer.is_success:
        raise ClusterError(f"{path}: {answer.text}")
    return answer


def decoded(answer: Answer, kind: Any) -> Any:
    """The answer's body.

    Raises:
        ClusterError: It is none of that kind.
    """
    try:
        return decode(msgspec.json.Decoder(kind), answer.body)
    except msgspec.MsgspecError as error:
        if answer.body.lstrip().startswith(b"<"):
            raise ClusterError(
                "the kubeconfig's server answers with HTML: it is no API server, or a login page is "
                "in front of it"
            ) from error
        raise ClusterError(f"an answer of the API server cannot be parsed: {error}") from error
