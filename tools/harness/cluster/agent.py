"""The agent as a process beside the cluster, on a node of simulated cards."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.credentials import AGENT
from tools.harness.cluster.node import KUBELET_DIRECTORY, Node
from tools.harness.cluster.pods import CORE, COUNT, MEMORY
from tools.harness.cluster.processes import Program, command_output
from tools.harness.cluster.waiting import wait_for
from tools.harness.rig import stored_grants

from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode

PROFILE = "v100"
METRICS_PORT = 9445
PROGRAM = Path(sys.executable).parent / "gpu-device-plugin"
ROLE = "gpu-device-plugin-agent"
RULES = (
    ("", ("nodes",), ("list", "watch", "patch")),
    ("", ("pods",), ("get", "list", "watch", "patch")),
    ("", ("namespaces",), ("get",)),
    ("", ("events",), ("create", "patch")),
    ("resource.k8s.io", ("resourceslices",), ("list", "watch", "create", "update", "delete")),
    ("resource.k8s.io", ("resourceclaims",), ("get", "list")),
)
KUBE_SYSTEM_RULES = (("", ("configmaps",), ("list", "watch")),)


@dataclass(frozen=True, slots=True)
class AgentDirectories:
    """Where the agent of this run keeps its things, and the node it serves.

    Attributes:
        root: Its directories lie here.
        logs: Where its log goes.
        node: None: the cluster's first.
    """

    root: Path
    logs: Path
    node: Node | None = None

    @property
    def state(self) -> Path:
        """What survives a reboot."""
        return self.root / "state"

    @property
    def run(self) -> Path:
        """What does not."""
        return self.root / "run"

    @property
    def library(self) -> Path:
        """Versions of the isolation library."""
        return self.root / "library"

    @property
    def simulated_node(self) -> Path:
        """The directory of the stand-in driver's libraries and the file they read cards from."""
        return self.root / "cards"

    @property
    def nvml_library(self) -> Path:
        """The NVML that shows these cards to anyone who loads it."""
        return self.simulated_node / "libnvidia-ml.so.1"


class Agent:
    """Starts, stops and kills the agent, and reads what it has written."""

    def __init__(
        self,
        cluster: Cluster,
        directories: AgentDirectories,
        flags: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._cluster = cluster
        self.node = directories.node or cluster.node
        self._metrics = f"{self.node.place.address}:{METRICS_PORT}"
        self._flags_given = dict(flags or {})
        self.directories = directories
        self.environment = {**os.environ, **(environment or {})}
        given = {**self._flags(), **(flags or {})}
        command = [*self.node.place.enter, str(PROGRAM), "agent"]
        command += [f"--{key}={value}" for key, value in given.items()]
        self.program = Program("agent", command, directories.logs / "agent.log", self.environment)

    def prepare(self, *node: str, profile: str = PROFILE) -> None:
        """Make the simulated node (`node`: further words of `simulate create`) and its rights."""
        self.directories.simulated_node.mkdir(parents=True, exist_ok=True)
        self.simulate("create", "--profile", profile, *node)
        self._cluster.apply(*_rights())

    def another(self, environment: Mapping[str, str]) -> "Agent":
        """One that takes this one's place, in another environment."""
        return Agent(self._cluster, self.directories, self._flags_given, environment)

    def simulate(self, *arguments: str) -> str:
        """Change the simulated cards."""
        state = f"--state={self.directories.simulated_node}"
        return command_output([str(PROGRAM), "simulate", *arguments, state])

    def start(self) -> None:
        """Start it and return when it serves."""
        self.program.start()
        wait_for("the agent is ready", self._is_ready, 60)

    def stop(self) -> int | None:
        """Ask it to end; its exit code."""
        return self.program.stop()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.program.kill()

    def grants(self) -> Sequence[Grant]:
        """What it has promised, as it stands on disk."""
        return stored_grants(GrantStore(self.directories.state, ""))

    def uuids(self) -> list[str]:
        """The cards, by index."""
        state = self.directories.simulated_node / STATE_NAME
        return [card.uuid for card in SimulatedNode(state).view().cards]

    def samples(self, metric: str) -> dict[str, float]:
        """Pod -> value of one of its metrics."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith(metric + "{")]
        return {line.split('pod="')[1].split('"')[0]: float(line.split()[-1]) for line in found}

    def _is_ready(self) -> bool:
        self.program.check()
        try:
            with urllib.request.urlopen(
                f"http://{self._metrics}/readyz", timeout=60
            ) as answer:  # a constant
                return bool(answer.status == 200)
        except OSError:
            return False

    def _flags(self) -> dict[str, str]:
        places = self.directories
        return {
            "node-name": self.node.name,
            "kubeconfig": str(self._cluster.agent_kubeconfig),
            "nvml-library": str(places.nvml_library),
            "kubelet-dir": str(KUBELET_DIRECTORY),
            "state-dir": str(places.state),
            "run-dir": str(places.run),
            "library-dir": str(places.library),
            "metrics-address": self._metrics,
        }


def wait_for_allocatable(
    cluster: Cluster, expected: dict[str, str], seconds: float = 30, node: str = NODE
) -> None:
    """Return when the node offers exactly that."""

    def offered() -> bool:
        return resources(cluster, "allocatable", node) == expected

    wait_for(f"node {node} offers {expected}", offered, seconds, 0.3)


def resources(cluster: Cluster, side: str, node: str = NODE) -> dict[str, str]:
    """Our resources in a node's capacity or allocatable."""
    status: dict[str, Any] = cluster.get("node", node)["status"]
    return {name: status[side][name] for name in (MEMORY, CORE, COUNT) if name in status[side]}


def _rights() -> Iterator[dict[str, Any]]:
    api = "rbac.authorization.k8s.io"
    for scope, rules in (("Cluster", RULES), ("", KUBE_SYSTEM_RULES)):
        place = {} if scope else {"namespace": "kube-system"}
        named = {"apiVersion": f"{api}/v1", "metadata": {"name": ROLE, **place}}
        yield {
            **named,
            "kind": f"{scope}Role",
            "rules": [
                {"apiGroups": [group], "resources": list(names), "verbs": list(verbs)}
                for group, names, verbs in rules
            ],
        }
        yield {
            **named,
            "kind": f"{scope}RoleBinding",
            "roleRef": {"apiGroup": api, "kind": f"{scope}Role", "name": ROLE},
            "subjects": [{"apiGroup": api, "kind": "User", "name": AGENT.name}],
        }
