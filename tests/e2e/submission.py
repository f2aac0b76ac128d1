"""Objects submitted to the API server without being kept, and what the server says to them."""

import http
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.harness.cluster.api import Api, path_of
from tools.harness.cluster.cluster import NAMESPACE, Cluster

KINDS = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP status, and in words why not; the text is empty where it was accepted.

    Attributes:
        made: What would be stored; nothing where it was refused.
    """

    status: int
    text: str
    made: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_accepted(self) -> bool:
        """Whether the object would have been stored."""
        return self.status < http.HTTPStatus.MULTIPLE_CHOICES


class Submission:
    """Speaks to the API server as one user: that of a token, or one that the admin stands in for."""

    def __init__(self, cluster: Cluster, token: str = "", user: str = "") -> None:
        self._api = Api(cluster.admin_kubeconfig, token, user)

    def create(self, content: Mapping[str, Any], namespace: str = NAMESPACE) -> Answer:
        """Whether the server would create the object; every admission runs, nothing is kept."""
        path = path_of(content["kind"], namespace)
        return self._send("POST", path, content, "application/json")

    def patch(self, path: str, content: Mapping[str, Any]) -> Answer:
        """Whether the server would take a merge patch of the object at `path`."""
        return self._send("PATCH", path, content, MERGE_PATCH)

    def _send(self, method: str, path: str, content: Mapping[str, Any], kind: str) -> Answer:
        status, made = self._api.ask(method, f"{path}?dryRun=All", content, kind)
        is_accepted = status < http.HTTPStatus.MULTIPLE_CHOICES
        return Answer(status, "" if is_accepted else str(made["message"]), made)
