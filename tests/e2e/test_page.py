"""The chart's page, on a real cluster: who may list what it shows reads it, nobody else does."""

import http.client
from collections.abc import Iterator

import pytest
from tests.e2e.agent_image import AgentImage
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import RELEASE_NAMESPACE, WRITER, Helm
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.processes import ProgramError
from tools.harness.cluster.waiting import wait_for

RELEASE = "page"
NAME = f"{RELEASE}-gpu-device-plugin-page"
PLACE = ("-n", RELEASE_NAMESPACE)
READER = f"--serviceaccount={RELEASE_NAMESPACE}:reader"


@pytest.fixture
def address(cluster: Cluster, agent_image: AgentImage) -> Iterator[str]:
    """Where the page of a release without agents is served; a reader may look, a stranger may not."""
    helm = Helm(cluster, RELEASE)
    helm.install(
        *(f"image.repository={agent_image.repository}", f"image.tag={agent_image.tag}"),
        *("image.pullPolicy=Never", "nodeSelector.agents=none", "policies.enabled=false"),
        WRITER,
        *("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false", "page.enabled=true"),
    )
    for name in ("reader", "stranger"):
        cluster.kubectl("create", "serviceaccount", name, *PLACE)
    role = f"--clusterrole={NAME}-reader"
    cluster.kubectl("create", "clusterrolebinding", "page-reader", role, READER)
    try:
        cluster.kubectl("rollout", "status", f"deployment/{NAME}", *PLACE, "--timeout=120s")
        yield cluster.get("service", NAME, RELEASE_NAMESPACE)["spec"]["clusterIP"]
    except ProgramError as error:
        told = cluster.kubectl("describe", "pods", *PLACE)
        told += cluster.kubectl("logs", f"deployment/{NAME}", *PLACE, "--tail=40")
        raise AssertionError(told) from error
    finally:
        helm.uninstall()
        cluster.kubectl("delete", "clusterrolebinding", "page-reader")
        cluster.kubectl("delete", "serviceaccount", "reader", "stranger", *PLACE)


def asked(address: str, token: str, path: str = "/") -> tuple[int, str]:
    """Status and text of a page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_page_is_for_who_may_list_what_it_shows(
    cluster: Cluster, agent: Agent, address: str
) -> None:
    assert agent.program.running()
    tokens = {
        name: cluster.kubectl("create", "token", name, *PLACE).strip()
        for name in ("reader", "stranger")
    }
    cluster.apply(pod("shown", container("main", resources=slice_of(2, 30))))

    def answers() -> bool:
        """Its pod is ready before kube-proxy sends anything there."""
        try:
            return asked(address, tokens["reader"])[0] == 200
        except OSError:
            return False

    wait_for("the page answers", answers, 30, 0.5)

    def shows_the_slice() -> bool:
        return (
            "default/shown: 2 of 15 units, 30 % compute, memory by library, compute by library<"
            in asked(address, tokens["reader"])[1]
        )

    wait_for("the page shows the slice", shows_the_slice, 60, 0.5)
    story = asked(address, tokens["reader"], "/pod/default/shown?part")[1]
    assert "container main: 2154 MiB of card" in story
    assert asked(address, "")[0] == asked(address, "no.such.token")[0] == 401
    code, text = asked(address, tokens["stranger"])
    assert code == 403
    assert "system:serviceaccount:gpu-device-plugin:stranger may not list nodes" in text
    assert "n1" not in text.partition("<body")[2].replace(NAME, "")
