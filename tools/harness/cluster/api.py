"""The API server as one user reaches it from this process: kubectl costs a tenth of a second of a core, each time."""

import http.client
import json
import ssl
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import quote

SECONDS = 60.0
_GROUPS = {
    "/api/v1": (
        "pods",
        "configmaps",
        "secrets",
        "services",
        "serviceaccounts",
        "resourcequotas",
        "events",
    ),
    "/apis/apps/v1": ("daemonsets", "deployments", "replicasets", "statefulsets"),
    "/apis/batch/v1": ("jobs", "cronjobs"),
    "/apis/resource.k8s.io/v1": ("resourceclaims",),
    "/apis/coordination.k8s.io/v1": ("leases",),
}
_OF_THE_CLUSTER = {
    "/api/v1": ("nodes",),
    "/apis/resource.k8s.io/v1": ("resourceslices",),
    "/apis/admissionregistration.k8s.io/v1": (
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
    ),
}


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Where objects of a kind, or one of them, are found; cluster-wide kinds have no namespace.

    Args:
        kind: In the singular, as in manifests or in lower case.
        namespace: Of the object.
        name: Empty for all of the namespace.
    """
    lower = kind.lower()
    plural = f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"
    after = f"/{quote(name)}" if name else ""
    for group, plurals in _OF_THE_CLUSTER.items():
        if plural in plurals:
            return f"{group}/{plural}{after}"
    for group, plurals in _GROUPS.items():
        if plural in plurals:
            return f"{group}/namespaces/{quote(namespace)}/{plural}{after}"
    raise ValueError(f"{kind}: tools/harness/cluster/api.py knows no such kind")


class Api:
    """Requests as one user, over one connection that is kept."""

    def __init__(self, kubeconfig: Path, token: str = "", user: str = "") -> None:
        """Take server and token from a kubeconfig.

        Args:
            kubeconfig: Of somebody who gives a token.
            token: In place of that one.
            user: In whose name that one asks; empty for its own.
        """
        config = json.loads(kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        self._headers = {"Authorization": f"Bearer {token or config['users'][0]['user']['token']}"}
        if user:
            self._headers |= {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        host = server["server"].removeprefix("https://")
        tls = ssl.create_default_context(cafile=server["certificate-authority"])
        self._connection = http.client.HTTPSConnection(host, timeout=SECONDS, context=tls)
        weakref.finalize(self, self._connection.close)

    def ask(
        self, method: str, path: str, content: object = None, kind: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        """Status and answer. What is asked may be asked twice.

        Raises:
            OSError: no API server answers.
        """
        body = None if content is None else json.dumps(content)
        try:
            return self._asked(method, path, body, kind)
        except (http.client.HTTPException, ConnectionError):
            # The server has ended the connection, or itself.
            return self._asked(method, path, body, kind)

    def _asked(
        self, method: str, path: str, body: str | None, kind: str
    ) -> tuple[int, dict[str, Any]]:
        try:
            self._connection.request(method, path, body, self._headers | {"Content-Type": kind})
            answer = self._connection.getresponse()
            return answer.status, dict(json.loads(answer.read()))
        except Exception:
            self._connection.close()
            raise
