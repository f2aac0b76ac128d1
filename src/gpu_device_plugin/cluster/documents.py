"""Single objects that replicas share: read, made and replaced, each with the answer in mind."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_device_plugin.cluster.api import Answer, ApiServer, Request
from gpu_device_plugin.errors import ClusterError

Document = Mapping[str, Any]
_SECONDS = 4.0


async def read(api: ApiServer, path: str) -> Document | None:
    """The object, or None where there is none.

    Raises:
        ClusterError: The API server does not answer, or refuses.
    """
    answer = await api.call(Request("GET", path), deadline_seconds=_SECONDS)
    return None if answer.is_not_found else _decoded(path, answer)


async def create(api: ApiServer, collection: str, body: Document) -> Document | None:
    """The object as it was made, or None where there is one of that name.

    Raises:
        ClusterError: As for `read`.
    """
    answer = await api.call(Request("POST", collection, body=body), deadline_seconds=_SECONDS)
    return None if answer.status == 409 else _decoded(collection, answer)


async def replace(api: ApiServer, path: str, body: Document) -> Document | None:
    """The object as it is now, or None where it has changed since, or is gone.

    Args:
        api: Where.
        path: The object's.
        body: All of it, with the resourceVersion that was read.

    Raises:
        ClusterError: As for `read`.
    """
    answer = await api.call(Request("PUT", path, body=body), deadline_seconds=_SECONDS)
    return None if answer.is_not_found or answer.status == 409 else _decoded(path, answer)


def _decoded(path: str, answer: Answer) -> Document:
    if not answer.is_success:
        raise ClusterError(f"{path}: {answer.text}")
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ClusterError(f"{path}: the answer cannot be parsed: {error}") from error
