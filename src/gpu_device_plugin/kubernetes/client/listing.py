"""Lists of the Kubernetes API in pages, and objects that are read once.

Objects that replicas share are also made and replaced, each with the answer in mind. Each function
raises ClusterError where the API server does not answer, refuses, or answers with something else.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from gpu_device_plugin.errors import AccessError, ClusterError, ThrottledError, TooLongError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.foreign_text import decode
from gpu_device_plugin.kubernetes.client.wire import Bare, ListMeta, ListOf

_MOST_OBJECTS = 500
_MOST_BYTES = 16 * 1024 * 1024
_MOST_WAITS, _MOST_LISTS = 5, 5
_GONE = 410
_Object = TypeVar("_Object", bound=Bare)
_Read = TypeVar("_Read")


class _Page(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


async def pages(
    ask: Callable[[Request], Awaitable[Answer]], path: str, query: Mapping[str, str]
) -> AsyncIterator[Answer]:
    """Each page of a list, as the API server answers it; one that it refuses is the last.

    Objects of 1.5 MiB are possible, and tenants make them. So a page that has more than 16 MiB is
    asked for again with fewer objects, down to one.
    """
    number, query = _MOST_OBJECTS, dict(query)
    while True:
        most = _MOST_BYTES if number > 1 else 0
        try:
            answer = await ask(
                Request("GET", path, {**query, "limit": str(number)}, most_bytes=most)
            )
        except TooLongError:
            number = max(1, number // 4)
            continue
        yield answer
        page = decode_answer(answer, _Page) if answer.is_success else _Page()
        if not page.metadata.next_page:
            return
        query["continue"] = page.metadata.next_page
        if len(answer.body) < _MOST_BYTES // 8:
            number = min(_MOST_OBJECTS, number * 2)


async def list_items(
    api: ApiServer, path: str, kind: type[_Object], query: Mapping[str, str] | None = None
) -> AsyncIterator[_Object]:
    """Every object of a list, page by page.

    A server that no longer has the version of the first page (410) is asked from the start again.
    """
    known = set[tuple[str, str]]()
    for left in reversed(range(_MOST_LISTS)):
        async for answer in pages(partial(_ask, api), path, query or {}):
            if answer.status == _GONE and left:
                break
            checked = check_answer(answer, f"GET {path}")
            page: ListOf[_Object] = decode_answer(checked, ListOf[kind])  # type: ignore[valid-type]
            for item in page.items or ():
                name = (item.metadata.namespace, item.metadata.name)
                if name not in known:
                    known.add(name)
                    yield item
        else:
            return


async def read_object(
    api: ApiServer, path: str, kind: type[_Read], deadline_seconds: float | None = None
) -> _Read | None:
    """The object at `path` by one GET, or None where there is none.

    With a deadline a server that asks us to come later is not asked again.
    """
    request = Request("GET", path)
    if deadline_seconds is None:
        answer = await _ask(api, request)
    else:
        answer = await api.call(request, deadline_seconds=deadline_seconds)
    return None if answer.is_not_found else decode_answer(check_answer(answer, f"GET {path}"), kind)


async def _ask(api: ApiServer, request: Request) -> Answer:
    """The answer; a server that asks us to come later is asked again then, as kubectl does it."""
    for _ in range(_MOST_WAITS):
        with suppress(ThrottledError):
            return await api.call(request)
        await api.let(request)
    return await api.call(request)


def check_answer(answer: Answer, path: str) -> Answer:
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


def decode_answer(answer: Answer, kind: type[_Read]) -> _Read:
    """The answer's body."""
    try:
        return decode(msgspec.json.Decoder(kind), answer.body)
    except msgspec.MsgspecError as error:
        if answer.body.lstrip().startswith(b"<"):
            raise ClusterError(
                "the kubeconfig's server answers with HTML: it is no API server, or a login page is "
                "in front of it"
            ) from error
        raise ClusterError(f"an answer of the API server cannot be parsed: {error}") from error


Document = Mapping[str, Any]
_SECONDS = 4.0


async def read(api: ApiServer, path: str, seconds: float = _SECONDS) -> Document | None:
    """The object, or None where there is none."""
    return await read_object(api, path, dict[str, Any], seconds)


async def create(
    api: ApiServer, collection: str, body: Document, seconds: float = _SECONDS
) -> Document | None:
    """The object as it was made, or None where there is one of that name."""
    answer = await api.call(Request("POST", collection, body=body), deadline_seconds=seconds)
    return None if answer.status == 409 else _decoded(collection, answer)


async def replace(
    api: ApiServer, path: str, body: Document, seconds: float = _SECONDS
) -> Document | None:
    """The object as it is now; None where it is gone, or not of the body's resourceVersion."""
    answer = await api.call(Request("PUT", path, body=body), deadline_seconds=seconds)
    return None if answer.is_not_found or answer.status == 409 else _decoded(path, answer)


async def write(
    api: ApiServer, collection: str, name: str, before: Document | None, body: Document
) -> Document | None:
    """`create` where nothing was there `before`, else `replace`; None where it changed meanwhile."""
    if before is None:
        return await create(api, collection, body)
    return await replace(api, f"{collection}/{name}", body)


def _decoded(path: str, answer: Answer) -> Document:
    return decode_answer(check_answer(answer, path), dict[str, Any])
