"""The chart's certificates are what cert-manager's definitions allow, word by word.

cert-manager itself does not run here: the real API server judges the objects by its definitions.
"""

from typing import Any

import pytest
import yaml
from tests.chart.rendering import manifests
from tools.harness.cluster.binaries import provide_cert_manager
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.waiting import wait_for

_CHOSEN = "controller.tls.certManager."
_ON = ("controller.enabled=true", _CHOSEN + "enabled=true", "controller.clusterIP=10.96.0.200")


@pytest.fixture(scope="module", name="defined")
def _defined(cluster: Cluster) -> Cluster:
    """The cluster with the two definitions that the chart uses."""
    folder = provide_cert_manager() / "deploy/crds"
    for kind in ("issuers", "certificates"):
        found: dict[str, Any] = yaml.safe_load((folder / f"crd-{kind}.yaml").read_text())
        # Labels and annotations are templates of cert-manager's chart.
        found["metadata"] = {"name": found["metadata"]["name"]}
        cluster.apply(found)

    def is_served() -> bool:
        known = cluster.kubectl("api-resources", "--api-group=cert-manager.io", "-o", "name")
        return known.split() == ["certificates.cert-manager.io", "issuers.cert-manager.io"]

    wait_for("the definitions are served", is_served, 60, 0.5)
    return cluster


@pytest.mark.parametrize(
    "more", [(), (_CHOSEN + "issuer.name=pki", _CHOSEN + "issuer.kind=ClusterIssuer")]
)
def test_the_api_server_takes_the_charts_certificates_without_an_unknown_field(
    defined: Cluster, more: tuple[str, ...]
) -> None:
    made = [m for m in manifests(*_ON, *more) if m["apiVersion"] == "cert-manager.io/v1"]
    for each in made:
        each["metadata"]["namespace"] = "default"
    text = yaml.safe_dump_all(made)
    told = defined.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert told.count("created (server dry run)") == len(made) == (2 if more else 5)
