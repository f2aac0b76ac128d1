"""helm against the cluster of these tests, with the chart of this checkout."""

from pathlib import Path

import yaml
from tools.harness.cluster.binaries import provide_helm
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.credentials import AGENT
from tools.harness.cluster.images import Image
from tools.harness.cluster.processes import ProgramError, command_output

from gpu_device_plugin.domain.node.labels import NODE_LABELS

CHART = Path(__file__).resolve().parents[3] / "charts" / "gpu-device-plugin"
RELEASE = "gpu-device-plugin"
RELEASE_NAMESPACE = "gpu-device-plugin"
# None of our pods at all, hooks included: their image is not on this node.
NOBODY = (
    "nodeSelector.e2e=nowhere,hooks.uninstall.enabled=false,hooks.upgrade.enabled=false,"
    "image.tag=on-no-node"
)


WRITER = f"policies.annotationWriters={{{AGENT.name}}}"
"""The tests' own agent, which is no pod of the release, may say what pods hold."""
CLAIMS = ("dra.enabled=true", "dra.namespaces={default}", "dra.wholeCards=nvidia.com/gpu", WRITER)


ADDRESS = "10.96.0.200"
"""The controller's, here: this cluster resolves no names of Services."""


class Helm:
    """Installs and removes a release as the cluster's admin."""

    def __init__(self, cluster: Cluster, release: str = RELEASE) -> None:
        self._program = str(provide_helm())
        self._kubeconfig = str(cluster.admin_kubeconfig)
        self.release = release

    def __call__(self, *arguments: str) -> str:
        """Run helm in the release's namespace and return what it prints."""
        command = [self._program, "--kubeconfig", self._kubeconfig]
        return command_output([*command, "--namespace", RELEASE_NAMESPACE, *arguments], None, 300)

    def install(self, *settings: str, chart: Path = CHART) -> str:
        """Install the chart, or bring the release to these values; `settings` are --set texts.

        It brings the agents alone, where the settings do not say otherwise.
        """
        chosen = [f"--set={setting}" for setting in ("controller.enabled=false", *settings)]
        return self("upgrade", "--install", self.release, str(chart), "--create-namespace", *chosen)

    def uninstall(self) -> str:
        """Remove the release and wait until its objects are gone."""
        return self("uninstall", self.release, "--wait", "--timeout=280s")


def load_scheduler(cluster: Cluster, program: Path | None = None) -> None:
    """What the node would pull: the stock kube-scheduler, by default of the cluster's version, by the chart's name for it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = f"{values['scheduler']['image']['repository']}:v{cluster.binaries.kubernetes_version}"
    program = program or cluster.binaries.kubernetes / "kube-scheduler"
    files = {"bin/kube-scheduler": program.read_bytes()}
    links = {"usr/local/bin/kube-scheduler": "/bin/kube-scheduler"}
    cluster.node.load(Image(named, files, links, ()))


DAEMONSET = f"daemonset/{RELEASE}"
DEPLOYMENTS = (f"deployment/{RELEASE}-controller", f"deployment/{RELEASE}-scheduler")
"""What the chart runs, for `wait_for_rollout`."""


def wait_for_rollout(cluster: Cluster, *workloads: str, seconds: int = 360) -> None:
    """Return when these workloads of the release are ready; else fail with what its pods said."""
    place = ("-n", RELEASE_NAMESPACE)
    for workload in workloads:
        status = ("rollout", "status", workload, *place, f"--timeout={seconds}s")
        try:
            cluster.kubectl(*status, seconds=seconds + 40)
        except ProgramError as error:
            described = cluster.kubectl("describe", "pods", *place)
            logs = cluster.kubectl("logs", workload, *place, "--all-containers", "--tail=50")
            raise ProgramError(f"{workload} is not ready:\n{described}\n{logs}") from error


def left_on_nodes(cluster: Cluster) -> set[str]:
    """Keys of labels and annotations on nodes that only we write."""
    metas = [node["metadata"] for node in cluster.every("node")]
    keys = {key for meta in metas for of in ("labels", "annotations") for key in meta.get(of, {})}
    return {key for key in keys if key.startswith("gpu-device-plugin/")} | (keys & {*NODE_LABELS})
