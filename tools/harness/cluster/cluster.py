"""A whole Kubernetes on this machine: `with Cluster(layout) as cluster: cluster.kubectl(...)`."""

import http
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tools.harness.cluster import binaries as programs
from tools.harness.cluster.api import Api, path_of
from tools.harness.cluster.control_plane import SERVER, SERVICE_ADDRESS, ControlPlane
from tools.harness.cluster.credentials import (
    ADMIN,
    AGENT,
    CONTROLLER_MANAGER,
    PROXY,
    SCHEDULER,
    Credentials,
    node_user,
)
from tools.harness.cluster.images import standard_images
from tools.harness.cluster.layout import ADDRESS, Layout, isolate
from tools.harness.cluster.namespaces import Namespaces
from tools.harness.cluster.node import Node, NodePlace
from tools.harness.cluster.processes import ProgramError, command_output
from tools.harness.cluster.waiting import wait_for

NODE = "n1"
PODS = "10.201.0.0/16"
FURTHER_NODES = {"n2": ("10.200.0.2", "10.202.0.0/16"), "n3": ("10.200.0.3", "10.203.0.0/16")}
"""Name -> address of the machine, and range of its pods' addresses."""
NAMESPACE = "default"


class Cluster:
    """One control plane and one node, from start to stop, and another node while it is wanted."""

    def __init__(self, layout: Layout, version: str | None = None) -> None:
        self.layout = layout
        self.binaries = programs.provide(version or programs.kubernetes_version())
        self.credentials = Credentials(layout.credentials, SERVER)
        place = NodePlace(NODE, ADDRESS, PODS, layout.node(NODE), layout.logs)
        self.node = Node(place, self.binaries, self.credentials)
        self.control_plane = ControlPlane(self.binaries, layout, self.credentials)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def node_name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def admin_kubeconfig(self) -> Path:
        """For somebody who may do everything."""
        return self.credentials.kubeconfig(ADMIN)

    @property
    def agent_kubeconfig(self) -> Path:
        """For the agent, who may do what its role says."""
        return self.credentials.kubeconfig(AGENT)

    def start(self) -> None:
        """Bring everything up and return when a pod could run; on failure take it down again."""
        self.prepare()
        try:
            self.control_plane.start()
            self.node.start(standard_images())
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def prepare(self) -> None:
        """Make what the control plane needs, before it starts."""
        isolate(self.layout)
        nodes = tuple(node_user(name) for name in (NODE, *FURTHER_NODES))
        users = (ADMIN, AGENT, SCHEDULER, CONTROLLER_MANAGER, PROXY, *nodes)
        self.credentials.create((ADDRESS, "127.0.0.1", SERVICE_ADDRESS), users)

    def stop(self) -> None:
        """Take everything down; what is left goes with the namespaces."""
        self.node.stop()
        self.control_plane.stop()

    @contextmanager
    def another_node(self, name: str = "n2") -> Iterator[Node]:
        """A further node, for as long as it is needed; its Node object goes with it."""
        (address, pods), directory = FURTHER_NODES[name], self.layout.node(name)
        namespaces = Namespaces(name, address, pods, self.layout.logs)
        enter = namespaces.open()
        place = NodePlace(name, address, pods, directory, self.layout.logs, enter)
        node = Node(place, self.binaries, self.credentials)
        try:
            node.start(standard_images())
            self.wait_until_ready(node)
            yield node
        finally:
            self.kubectl("delete", "node", name, "--ignore-not-found=true")
            node.stop()
            namespaces.close()
            shutil.rmtree(directory)

    def wait_until_ready(self, node: Node | None = None) -> None:
        """Return when the node is ready and pods may be created and scheduled."""
        looked_at = node or self.node
        wait_for(f"node {looked_at.name} is ready", lambda: self._is_ready(looked_at), 90)
        wait_for("the default service account exists", self._account_exists, 30)

    def restart_kubelet(self, *, kill: bool = False) -> None:
        """End the kubelet and start it again."""
        self.node.restart_kubelet(kill=kill)

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 400.0) -> str:
        """Run kubectl as the admin and return what it prints."""
        command = [str(self.binaries.kubectl), "--kubeconfig", str(self.admin_kubeconfig)]
        return command_output([*command, *arguments], stdin, seconds)

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Create or change objects."""
        content = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(content))

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """Read one object."""
        found = self.find(kind, name, namespace)
        if found is None:
            raise ProgramError(f"there is no {kind} {name} in namespace {namespace}")
        return found

    def every(
        self, kind: str, namespace: str = NAMESPACE, selector: str = ""
    ) -> Sequence[dict[str, Any]]:
        """Read all objects of one kind in one namespace, or those with certain labels."""
        found = self._read(f"{path_of(kind, namespace)}?labelSelector={quote(selector)}")
        return list(found["items"]) if found else []

    def find(self, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any] | None:
        """Read one object, or None where there is none of that name."""
        return self._read(path_of(kind, namespace, name))

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            status, found = self._api.ask("GET", path)
        except OSError as error:
            raise ProgramError(f"GET {path}: the API server does not answer: {error}") from error
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise ProgramError(f"GET {path}: {status} {found.get('message')}")
        return found

    @cached_property
    def _api(self) -> Api:
        return Api(self.admin_kubeconfig)

    def wait_for_phase(self, pod: str, *phases: str, seconds: float = 60.0) -> dict[str, Any]:
        """Return the pod once its phase is one of those."""
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.find("pod", pod) or {})
            return bool(seen) and seen["status"].get("phase") in phases

        wait_for(f"pod {pod} is {' or '.join(phases)}", reached, seconds, 0.2)
        return seen

    def collect(self, directory: Path) -> None:
        """Keep what helps to understand a failure: objects, checkpoint, logs of pods."""
        directory.mkdir(parents=True, exist_ok=True)
        for kind in ("pods", "events", "nodes", "resourceclaims", "resourceslices"):
            try:
                text = self.kubectl("get", kind, "-A", "-o", "yaml")
            except ProgramError as error:
                text = str(error)
            (directory / f"{kind}.yaml").write_text(text)
        checkpoint = self.node.kubelet_directory / "device-plugins" / "kubelet_internal_checkpoint"
        if checkpoint.exists():
            shutil.copy(checkpoint, directory)
        for logs in self.layout.state.glob("nodes/*/pod-logs"):
            shutil.copytree(logs, directory / f"{logs.parent.name}-pods", dirs_exist_ok=True)

    def _is_ready(self, looked_at: Node) -> bool:
        for program in (*self.control_plane.programs, *looked_at.programs):
            program.check()
        node = self.find("node", looked_at.name)
        if node is None or node["spec"].get("taints"):
            return False
        conditions = node["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _account_exists(self) -> bool:
        return self.find("serviceaccount", "default") is not None
