"""Queries to a Prometheus, by its address or as a Service behind the API server."""

import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import aiohttp
import msgspec

from gpu_device_plugin.errors import ClusterError, ConfigError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.api_connections import connection_error
from gpu_device_plugin.kubernetes.client.listing import check_answer

_SECONDS = 10.0
Series = tuple[dict[str, str], float]
PastSeries = tuple[dict[str, str], Sequence[tuple[float, float]]]


_Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[_Moment, str] = (0.0, "NaN")
    values: tuple[tuple[_Moment, str], ...] = ()


class _Data(msgspec.Struct):
    result: list[_Series]


class _Result(msgspec.Struct):
    data: _Data


async def instant_query(api: ApiServer, prometheus: str, query: str) -> Sequence[Series]:
    """Labels and value of each series of a PromQL query.

    `prometheus` is an address (`http://…`), or `NAMESPACE/SERVICE:PORT` behind `api`.

    Raises:
        ConfigError: It is neither.
        ClusterError: No answer, or none that a Prometheus gives; the text names which was asked.
    """
    return [(labels, past[-1][1]) for labels, past in await query_past(api, prometheus, query)]


async def query_past(api: ApiServer, prometheus: str, query: str) -> Sequence[PastSeries]:
    """As `instant_query`, each value with its time; of a subquery the earlier ones too."""
    path = query_path(prometheus)
    if path.startswith("/"):
        answer = await api.call(Request("GET", path, {"query": query}))
    else:
        answer = await _direct(path, query)
    try:
        found = msgspec.json.decode(
            check_answer(answer, f"GET {path}").body, type=_Result
        ).data.result
        return [
            (each.metric, [(at, float(value)) for at, value in each.values or (each.value,)])
            for each in found
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterError(f"{path}: not the answer of a Prometheus: {error}") from error


def query_path(prometheus: str) -> str:
    """Where it is asked: a URL, or a path at the API server."""
    if re.match(r"https?://[^/:]", prometheus):
        return prometheus.rstrip("/") + "/api/v1/query"
    namespace, slash, name = prometheus.partition("/")
    if not namespace or not slash or ":" not in name:
        raise ConfigError(
            f"--prometheus: {prometheus!r} is neither http://… nor NAMESPACE/SERVICE:PORT, "
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
