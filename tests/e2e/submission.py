"""Objects submitted to the API server without being kept, and what the server says to them."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.cluster.cluster import Cluster

PATHS = {
    "Pod": "/api/v1/namespaces/default/pods",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "CronJob": "/apis/batch/v1/namespaces/default/cronjobs",
}
# Of samples; no rule of ours is about them.
OTHER_PATHS = {
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "Service": "/api/v1/namespaces/default/services",
    "ResourceQuota": "/api/v1/namespaces/default/resourcequotas",
}
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
        return self.status < 300


class Submission:
    """Speaks to the API server as one user: that of a token, or one that the admin stands in for."""

    def __init__(self, cluster: Cluster, token: str | None = None, user: str = "") -> None:
        config = json.loads(cluster.admin_kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        self._host = server["server"].removeprefix("https://")
        self._headers = {"Authorization": f"Bearer {token or config['users'][0]['user']['token']}"}
        if user:
            self._headers |= {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        self._tls = ssl.create_default_context(cafile=server["certificate-authority"])

    def create(self, content: Mapping[str, Any], namespace: str = "default") -> Answer:
        """Whether the server would create the object; every admission runs, nothing is kept."""
        path = {**PATHS, **OTHER_PATHS}[content["kind"]].replace("/default/", f"/{namespace}/")
        return self._send("POST", path, content, "application/json")

    def patch(self, path: str, content: Mapping[str, Any]) -> Answer:
        """Whether the server would take a merge patch of the object at `path`."""
        return self._send("PATCH", path, content, MERGE_PATCH)

    def _send(self, method: str, path: str, content: Mapping[str, Any], kind: str) -> Answer:
        connection = http.client.HTTPSConnection(self._host, timeout=30, context=self._tls)
        try:
            headers = self._headers | {"Content-Type": kind}
            connection.request(method, f"{path}?dryRun=All", json.dumps(content), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        content = json.loads(text)
        is_accepted = answer.status < 300
        return Answer(answer.status, "" if is_accepted else str(content["message"]), content)
