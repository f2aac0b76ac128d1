"""etcd, the API server, the controller manager and the scheduler of one cluster."""

import os
from pathlib import Path

from tools.harness.cluster.binaries import Binaries
from tools.harness.cluster.credentials import ADMIN, CONTROLLER_MANAGER, SCHEDULER, Credentials
from tools.harness.cluster.layout import ADDRESS, Layout
from tools.harness.cluster.processes import Program, ProgramError, command_output
from tools.harness.cluster.waiting import wait_for

SERVER_PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
SERVER = f"https://{ADDRESS}:{SERVER_PORT}"
STORE_PORT = 2379
PEER_PORT = 2380


class ControlPlane:
    """The four programs behind the API."""

    def __init__(self, binaries: Binaries, layout: Layout, credentials: Credentials) -> None:
        self._binaries = binaries
        self._layout = layout
        self._credentials = credentials
        self.store = self._program("etcd", binaries.etcd, self._store_flags())
        self.server = self._kubernetes("kube-apiserver", self._server_flags())
        self.controllers = self._kubernetes("kube-controller-manager", self._controller_flags())
        self.scheduler = self._kubernetes("kube-scheduler", self._scheduler_flags())

    @property
    def programs(self) -> tuple[Program, ...]:
        """All of them, in the order of their start."""
        return (self.store, self.server, self.controllers, self.scheduler)

    def start(self) -> None:
        """Start all four and return when the API server is ready."""
        self.store.start()
        self.server.start()
        self.wait_until_ready()
        self.controllers.start()
        self.scheduler.start()

    def wait_until_ready(self) -> None:
        """Return when the API server says that it is ready."""
        wait_for("the API server is ready", self._server_is_ready, 60)

    def stop(self) -> None:
        """Stop all four, the store last."""
        for program in reversed(self.programs):
            program.stop()

    def _server_is_ready(self) -> bool:
        self.store.check()
        self.server.check()
        command = [str(self._binaries.kubectl), "--kubeconfig"]
        command += [str(self._credentials.kubeconfig(ADMIN)), "get", "--raw", "/readyz"]
        try:
            return command_output(command) == "ok"
        except ProgramError:
            return False

    def _kubernetes(self, name: str, flags: dict[str, str]) -> Program:
        return self._program(name, self._binaries.kubernetes / name, flags)

    def _program(self, name: str, path: Path, flags: dict[str, str]) -> Program:
        command = [str(path), *(f"--{key}={value}" for key, value in flags.items())]
        return Program(name, command, self._layout.logs / f"{name}.log", os.environ)

    def _store_flags(self) -> dict[str, str]:
        return {
            "name": "e2e",
            "data-dir": str(self._layout.state / "etcd"),
            "listen-client-urls": f"http://127.0.0.1:{STORE_PORT}",
            "advertise-client-urls": f"http://127.0.0.1:{STORE_PORT}",
            "listen-peer-urls": f"http://127.0.0.1:{PEER_PORT}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{PEER_PORT}",
            "initial-cluster": f"e2e=http://127.0.0.1:{PEER_PORT}",
            # As kubeadm has it: without it a new API server shows what is old for a minute.
            "experimental-watch-progress-notify-interval": "5s",
        }

    def _server_flags(self) -> dict[str, str]:
        path = self._credentials.path
        return {
            "etcd-servers": f"http://127.0.0.1:{STORE_PORT}",
            "advertise-address": ADDRESS,
            "secure-port": str(SERVER_PORT),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "token-auth-file": str(path("tokens.csv")),
            "client-ca-file": str(path("ca.crt")),
            "tls-cert-file": str(path("server.crt")),
            "tls-private-key-file": str(path("server.key")),
            "kubelet-client-certificate": str(path("kubelet-client.crt")),
            "kubelet-client-key": str(path("kubelet-client.key")),
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": SERVER,
            "service-account-key-file": str(path("service-account.pub")),
            "service-account-signing-key-file": str(path("service-account.key")),
            "service-cluster-ip-range": SERVICE_RANGE,
            "allow-privileged": "true",
        }

    def _controller_flags(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self._credentials.kubeconfig(CONTROLLER_MANAGER)),
            # Without credentials of their own the controllers may not take the not-ready taint
            # off the node, and nothing is ever scheduled.
            "use-service-account-credentials": "true",
            "root-ca-file": str(self._credentials.path("ca.crt")),
            "service-account-private-key-file": str(self._credentials.path("service-account.key")),
            "leader-elect": "false",
        }

    def _scheduler_flags(self) -> dict[str, str]:
        return {"kubeconfig": str(self._credentials.kubeconfig(SCHEDULER)), "leader-elect": "false"}
