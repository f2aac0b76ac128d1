"""Instant queries of a Prometheus: at its own address, or behind the API server's proxy."""

import re
from collections.abc import Sequence
from urllib.parse import quote

import aiohttp
import msgspec

from gpu_device_plugin.cluster.api import Answer, ApiServer, Request
from gpu_device_plugin.cluster.connections import connection_error
from gpu_device_plugin.cluster.listing import served
from gpu_device_plugin.errors import ClusterError, ConfigError

_SECONDS = 10.0
Series = tuple[dict[str, str], float]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[_Series]


class _Result(msgspec.Struct):
    data: _Data


async def instant_query(api: ApiServer, prometheus: str, query: str) -> Sequence[Series]:
    """Labels and value of each series.

    Args:
        api: The API server.
        prometheus: An address (`http://…`), or `NAMESPACE/SERVICE:PORT` behind `api`.
        query: In PromQL.

    Raises:
        ConfigError: It is neither.
        ClusterError: No answer, or none that a Prometheus gives; the text names which was asked.
    """
    path = query_path(prometheus)
    if path.startswith("/"):
        answer = await api.call(Request("GET", path, {"query": query}))
    else:
        answer = await _direct(path, query)
    try:
        found = msgspec.json.decode(served(answer, path).body, type=_Result).data.result
        return [(each.metric, float(each.value[1])) for each in found]
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterError(f"{path}: not the answer of a Prometheus: {error}") from error


def query_path(prometheus: str) -> str:
    """Where it is asked: a URL, or a path at the API server.

    Raises:
        ConfigError: It is neither an address nor `NAMESPACE/SERVICE:PORT`.
    """
    if re.match(r"https?://[^/:]", prometheus):
        return prometheus.rstrip("/") + "/api/v1/query"
    namespace, slash, name = prometheus.partition("/")
    if not namespace or not slash or ":" not in name:
        raise ConfigError(
            f"prometheus: {prometheus!r} is neither http://… nor NAMESPACE/SERVICE:PORT, "
            f"for instance monitoring/prometheus:9090"
        )
    return f"/api/v1/namespaces/{quote(namespace)}/services/{quote(name)}/proxy/api/v1/query"


async def _direct(url: str, query: str) -> Answer:
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, params={"query": query}) as response,
        ):
            return Answer(response.status, await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise connection_error(url, f"GET {url}", error) from error
