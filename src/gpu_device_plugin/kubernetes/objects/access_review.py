"""Who a bearer token is of, and what its owner may do: the API server decides, else ClusterError."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import check_answer, decode_answer

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(msgspec.Struct, frozen=True):
    """Whose a token is, as the API server says it."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that a user may do, in every namespace."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        """As `kubectl auth can-i` takes it."""
        return f"{self.verb} {self.resource}"


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: User = msgspec.field(default_factory=User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


async def user_of(api: ApiServer, token: str) -> User | None:
    """Whose token it is, or None where the API server does not accept it."""
    review: _TokenReview = await _reviewed(api, _TOKENS, "Token", {"token": token}, _TokenReview)
    return review.status.user if review.status.authenticated else None


async def is_allowed(api: ApiServer, user: User, right: Right) -> bool:
    """Whether the user may do that in all namespaces."""
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups or [],
        "extra": user.extra or {},
        "resourceAttributes": {
            "verb": right.verb,
            "resource": right.resource,
            "group": right.group,
        },
    }
    review: _AccessReview = await _reviewed(api, _ACCESS, "SubjectAccess", spec, _AccessReview)
    return review.status.allowed


async def _reviewed(
    api: ApiServer, path: str, kind: str, spec: dict[str, Any], answer: type[Any]
) -> Any:
    group = path.removeprefix("/apis/").rpartition("/")[0]
    body = {"apiVersion": group, "kind": f"{kind}Review", "spec": spec}
    return decode_answer(
        check_answer(await api.call(Request("POST", path, {}, body)), path), answer
    )
