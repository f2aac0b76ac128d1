"""Who a bearer token is of, and what its owner may do: the API server decides, else ClusterError."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import check_answer, decode_answer

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(msgspec.Struct, frozen=True):
    """The user that a token belongs to, as the API server says."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that a user may do, in one namespace or (empty) in every one."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        """As `kubectl auth can-i` takes it."""
        return f"{self.verb} {self.resource}" + (f" -n {self.namespace}" * bool(self.namespace))


class _Status(msgspec.Struct):
    """`status` of a TokenReview, or (`allowed`) of a SubjectAccessReview."""

    authenticated: bool = False
    user: User = User()
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def user_of(api: ApiServer, token: str) -> User | None:
    """The user that the token belongs to, or None where the API server does not accept it."""
    found = await _review(api, _TOKENS, "Token", {"token": token})
    return found.user if found.authenticated else None


async def is_allowed(api: ApiServer, user: User, right: Right) -> bool:
    """Whether the user may do that."""
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups or [],
        "extra": user.extra or {},
        "resourceAttributes": asdict(right),
    }
    return (await _review(api, _ACCESS, "SubjectAccess", spec)).allowed


async def _review(api: ApiServer, path: str, kind: str, spec: dict[str, Any]) -> _Status:
    group = path.removeprefix("/apis/").rpartition("/")[0]
    body = {"apiVersion": group, "kind": f"{kind}Review", "spec": spec}
    answer = check_answer(await api.call(Request("POST", path, {}, body)), path)
    return decode_answer(answer, _Review).status
