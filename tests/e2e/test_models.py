"""Models, drivers and profiles by label, with the chart's webhook and the real API server.

The controller runs beside the cluster, so the webhook is called by an address instead of a Service.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.chart.rendering import manifests
from tests.controller.test_webhook import CLASS, DRIVER, MODEL, S0_POD, S0_SELECTORS, required
from tests.e2e.submission import Answer, Submission
from tests.e2e.tenants import start_tenant, tenant_pod
from tests.nvidia_smi import NvidiaSmi
from tools.harness.cluster.agent import PROGRAM, Agent
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.processes import Program
from tools.harness.cluster.waiting import wait_for

_ADDRESS = "127.0.0.1:18444"
_SERIES = "V100: {names: [Tesla V100-SXM2-16GB]}"


def config_map(name: str, **data: str) -> dict[str, Any]:
    """One of the ConfigMaps that the controller follows."""
    meta = {"name": name, "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def labelled(name: str, **labels: str) -> dict[str, Any]:
    """A pod without a slice that asks by labels."""
    keys = {"compute_class": CLASS, "model": MODEL, "driver": DRIVER}
    made = pod(name, container("main"))
    made["metadata"]["labels"] |= {keys[key]: value for key, value in labels.items()}
    return made


def stored(cluster: Cluster, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as the API server would store it."""
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **asked})
    shown = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)
    return dict(json.loads(shown))


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Program]:
    """The controller, started before its webhook's configuration is there, and trusted."""
    (configuration,) = [
        made
        for made in manifests(
            *(
                "controller.enabled=true",
                "controller.webhook.enabled=true",
                "scheduler.enabled=false",
            )
        )
        if made["kind"] == "MutatingWebhookConfiguration"
    ]
    for each in configuration["webhooks"]:
        each["clientConfig"] = {"url": f"https://{_ADDRESS}/mutate"}
    name = configuration["metadata"]["name"]
    command = [str(PROGRAM), "controller", f"--address={_ADDRESS}"]
    command += ["--metrics-address=127.0.0.1:0", f"--kubeconfig={cluster.admin_kubeconfig}"]
    command += ["--models", f"--webhook-configuration={name}"]
    log = cluster.layout.logs / "controller-models.log"
    program = Program("controller", command, log, os.environ)
    program.start()
    cluster.apply(config_map("gpu-device-plugin-models", models=_SERIES), configuration)

    def is_trusted() -> bool:
        found = cluster.get("mutatingwebhookconfiguration", name)["webhooks"]
        return all("caBundle" in each["clientConfig"] for each in found)

    wait_for("the controller has written its authority", is_trusted, 60, 0.3)
    yield program
    cluster.kubectl("delete", "mutatingwebhookconfiguration", name)
    for other in ("gpu-device-plugin-models", "acs-profile"):
        cluster.kubectl("-n", "kube-system", "delete", "configmap", other, "--ignore-not-found")
    program.stop()


def test_the_sources_pod_gets_the_affinity_of_its_model_and_driver(
    cluster: Cluster, controller: Program
) -> None:
    """R-002, R-006: S0's example with T4 and 535.161.08; a driver that is not served is refused."""
    found = stored(cluster, S0_POD)
    wrong = {**S0_POD, "metadata": {**S0_POD["metadata"]}}
    wrong["metadata"]["labels"] = {**S0_POD["metadata"]["labels"], DRIVER: "999"}
    refused = Submission(cluster).create(wrong)

    assert required(found) == {MODEL: ["T4"], DRIVER: ["535.161.08"]}
    assert "999' is not served for T4. Served: 525.105.17, 535.161.08, 570.133.20" in refused.text
    assert controller.running()


def test_the_sources_profile_counts_at_once_and_a_bad_one_is_told(
    cluster: Cluster, controller: Program
) -> None:
    """R-009, R-010, R-602: the selector verbatim, and the command that shows the Event."""
    hpn = labelled("hpn", compute_class="gpu-hpn")
    cluster.apply(config_map("acs-profile", selectors=S0_SELECTORS, vpcId="vpc-1"))

    def driver() -> str | None:
        found: str | None = stored(cluster, hpn)["metadata"]["labels"].get(DRIVER)
        return found

    wait_for("the profile counts", lambda: driver() == "1.5.0", 30, 0.3)
    cluster.apply(config_map("acs-profile", selectors="[{", vpcId="vpc-1"))

    def events() -> str:
        about = "involvedObject.namespace=kube-system,involvedObject.name=acs-profile"
        return cluster.kubectl(
            *("-n", "kube-system", "get", "event", "--field-selector", about),
            *("-o", "jsonpath={..message}"),
        )

    wait_for("the Event says why", lambda: "selectors: " in events(), 30, 0.3)
    assert driver() == "1.5.0"
    assert cluster.get("configmap", "acs-profile", "kube-system")["data"]["vpcId"] == "vpc-1"
    assert controller.running()


def test_a_pod_runs_where_its_model_and_driver_are_and_nvidia_smi_shows_both(
    cluster: Cluster, isolating: Agent, controller: Program, nvidia_smi: NvidiaSmi
) -> None:
    """R-013: the agent labels its node with the driver, the controller with the series."""
    assert isolating.program.running()
    wanted = {MODEL: "V100", DRIVER: nvidia_smi.driver_version}

    def labels() -> dict[str, str]:
        return dict(cluster.get("node", NODE)["metadata"]["labels"])

    wait_for("the node is labelled", lambda: wanted.items() <= labels().items(), 60, 0.3)
    asked = tenant_pod("modelled", slice_of(2, 30))
    asked["metadata"]["labels"] |= wanted
    tenant = start_tenant(cluster, asked)
    shown = tenant.nvidia_smi()

    assert required(cluster.get("pod", "modelled")) == {k: [v] for k, v in wanted.items()}
    assert f"Driver Version: {nvidia_smi.driver_version}" in shown, shown
    assert "V100" in shown
    assert controller.running()


def test_the_api_server_asks_for_no_other_pod(cluster: Cluster, controller: Program) -> None:
    """R-616: with the controller away, who asks for a model is refused, and nobody else waits."""
    controller.kill()
    server = Submission(cluster)
    plain = pod("plain", container("main"))
    sliced = pod("sliced", container("main", resources=slice_of(2, 30)))
    other = labelled("other", compute_class="general-purpose")

    def created(asked: Mapping[str, Any]) -> Answer:
        return server.create({"apiVersion": "v1", "kind": "Pod", **asked})

    try:
        for asked in (plain, sliced, other):
            assert created(asked).text == ""
        for asked in (
            labelled("model", model="T4"),
            labelled("driver", driver="535.161.08"),
            labelled("hpn", compute_class="gpu-hpn"),
        ):
            answer = created(asked)
            assert "models.gpu-device-plugin.webhook" in answer.text, answer
    finally:
        controller.start()
