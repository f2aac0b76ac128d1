"""The keys, certificates, tokens and kubeconfigs of one cluster."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.harness.cluster.processes import command_output

EMPTY_REQUEST = "[req]\ndistinguished_name=dn\n[dn]\n"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody whom the API server knows by a token."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin", ("system:masters",))
SCHEDULER = User("system:kube-scheduler")
CONTROLLER_MANAGER = User("system:kube-controller-manager")
PROXY = User("system:kube-proxy")
AGENT = User("gpu-device-plugin-agent")


def node_user(name: str) -> User:
    """The user that the kubelet of one node is."""
    return User(f"system:node:{name}", ("system:nodes",))


class Credentials:
    """Makes and finds the files by which the parts of one cluster trust each other."""

    def __init__(self, directory: Path, server: str) -> None:
        self.directory = directory
        self._server = server
        self._tokens: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """The file of that name."""
        return self.directory / name

    def create(self, addresses: Sequence[str], users: Sequence[User]) -> None:
        """Write everything: the authority, the leaf certificates, the tokens and kubeconfigs."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path("request.conf").write_text(EMPTY_REQUEST)
        self._certificate("ca", "/CN=cluster", ("basicConstraints=critical,CA:TRUE",))
        names = ",".join(f"IP:{address}" for address in addresses)
        self._certificate("server", "/CN=kube-apiserver", (f"subjectAltName={names}",), signed=True)
        client = ("extendedKeyUsage=clientAuth",)
        self._certificate("kubelet-client", "/O=system:masters/CN=api", client, signed=True)
        key, public = str(self.path("service-account.key")), str(self.path("service-account.pub"))
        command_output(["openssl", "genrsa", "-out", key, "2048"])
        command_output(["openssl", "rsa", "-in", key, "-pubout", "-out", public])
        self._tokens = {user.name: secrets.token_hex(16) for user in users}
        lines = [self._token_line(user) for user in users]
        self.path("tokens.csv").write_text("\n".join(lines) + "\n")
        for user in users:
            self._write_kubeconfig(user)

    def kubeconfig(self, user: User) -> Path:
        """The kubeconfig of one user."""
        return self.path(f"{user.name.replace(':', '-')}.kubeconfig")

    def _token_line(self, user: User) -> str:
        groups = f',"{",".join(user.groups)}"' if user.groups else ""
        return f"{self._tokens[user.name]},{user.name},{user.name}{groups}"

    def _certificate(
        self, name: str, subject: str, extensions: Sequence[str], *, signed: bool = False
    ) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
        command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", subject]
        command += ["-config", str(self.path("request.conf"))]
        command += ["-keyout", str(self.path(f"{name}.key")), "-out", str(self.path(f"{name}.crt"))]
        for extension in extensions:
            command += ["-addext", extension]
        if signed:
            command += ["-CA", str(self.path("ca.crt")), "-CAkey", str(self.path("ca.key"))]
        command_output(command)

    def _write_kubeconfig(self, user: User) -> None:
        cluster = {"server": self._server, "certificate-authority": str(self.path("ca.crt"))}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user.name, "user": {"token": self._tokens[user.name]}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user.name}}],
            "current-context": "e2e",
        }
        self.kubeconfig(user).write_text(json.dumps(content))
