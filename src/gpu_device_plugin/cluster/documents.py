"""Single objects that replicas share: read, made and replaced, each with the answer in mind."""

from collections.abc import Mapping
from typing import Any

from gpu_device_plugin.cluster.api import Answer, ApiServer, Request
from gpu_device_plugin.cluster.listing import decoded, read_object, served

Document = Mapping[str, Any]
_SECONDS = 4.0


async def read(api: ApiServer, path: str) -> Document | None:
    """The object, or None where there is none.

    Raises:
        ClusterError: The API server does not answer, or refuses.
    """
    return await read_object(api, path, dict[str, Any], _SECONDS)


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
    return decoded(served(answer, path), dict[str, Any])
