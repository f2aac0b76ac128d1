"""From the release before this one to this one and back, by chart and image of both, under running pods.

The release before is the newest tag `v*`; while there is none, the commit that counts as the first version.
Its image takes minutes to build where the image cache lacks it, from packages that Debian may have replaced:
so `make conformance` alone runs this, by GPU_DEVICE_PLUGIN_UPGRADE=1.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent_image import ROOT, AgentImage, agent_image
from tests.e2e.image_parts import take_libraries
from tests.e2e.installation import RELEASE_SECONDS, Installation, granted_pods
from tests.e2e.tenants import Tenant, check_capped, cuda_images, start_tenant, tenant_pod
from tests.told import compile_program
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import RELEASE
from tools.harness.cluster.pods import slice_of
from tools.harness.cluster.waiting import wait_for

FIRST = "e161042d6dac"
TAG = "before"

pytestmark = pytest.mark.skipif(
    "GPU_DEVICE_PLUGIN_UPGRADE" not in os.environ,
    reason="builds the image of another commit: GPU_DEVICE_PLUGIN_UPGRADE=1",
)


@pytest.fixture(scope="module")
def checkout_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release before, as git has it."""
    newest = _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
    commit = newest.stdout.strip() or FIRST
    if _git("cat-file", "-e", commit).returncode:
        pytest.skip(f"this clone lacks {commit}, the release before: git fetch --unshallow")
    place = tmp_path_factory.mktemp("before") / "tree"
    _git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(place), check=True)
    _git("-C", str(place), "checkout", "--quiet", commit, check=True)
    return place


@pytest.fixture(scope="module")
def life(
    cluster: Cluster,
    serving_agent: Agent,
    checkout_before: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Installation]:
    """Both images on the first node, and the release before at work there."""
    old = agent_image(int(os.environ["GPU_DEVICE_PLUGIN_E2E_NETWORK"]), checkout_before)
    old.load_into(cluster.node)
    cluster.node.tag(old.reference, f"{old.repository}:{TAG}")
    new: AgentImage = request.getfixturevalue("agent_image")
    new.load_into(cluster.node)  # both say the same version until the first release
    libraries = take_libraries(new, tmp_path_factory.mktemp("libraries"))
    for image in cuda_images(compile_program(tmp_path_factory.mktemp("client")), libraries):
        cluster.node.load(image)
    serving_agent.stop()
    installed = Installation(cluster, cluster.node, new.repository)
    installed.helm(RELEASE).install(
        *installed.values(RELEASE, TAG), chart=checkout_before / "charts" / "gpu-device-plugin"
    )
    installed.wait_until_served(RELEASE, TAG)
    yield installed
    cluster.kubectl("delete", "pod", "--all")
    installed.helm(RELEASE)("uninstall", RELEASE, "--no-hooks", "--wait")


def test_pods_keep_their_slices_over_an_upgrade_and_a_downgrade(
    life: Installation, agent_image: AgentImage
) -> None:
    """No container restarts, each release takes over the other's grants, and each gives new ones."""
    running = [_granted(life, "before-upgrade")]
    life.bring(RELEASE, agent_image.tag)
    running.append(_granted(life, "after-upgrade", *running))
    life.helm(RELEASE)("rollback", RELEASE, "1")
    life.wait_until_served(RELEASE, TAG)
    running.append(_granted(life, "after-downgrade", *running))

    life.cluster.kubectl("delete", "pod", *running)
    wait_for(
        "every slice has ended", lambda: not granted_pods(life.cluster.node), RELEASE_SECONDS, 1
    )


def _granted(life: Installation, name: str, *others: str) -> str:
    """Start a pod with a slice; it and the others are capped by the grants that the agent has, and none restarted."""
    start_tenant(life.cluster, tenant_pod(name, slice_of(2, 30)))
    assert granted_pods(life.cluster.node) == {name, *others}
    for each in (name, *others):
        check_capped(Tenant(life.cluster, each))
        (status,) = life.cluster.get("pod", each)["status"]["containerStatuses"]
        assert status["restartCount"] == 0, each
    return name


def _git(*words: str, check: bool = False) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=check)
