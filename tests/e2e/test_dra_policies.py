"""Classic requests become claims by the API server alone: none of our processes runs here.

The chart is installed with `dra.enabled`, and the namespace `default` uses claims.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from tests.e2e.claims import claims_installed
from tests.e2e.policy_table import ROWS, SAMPLES, asking, runtime_classes, several
from tests.e2e.submission import Submission
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.api import path_of
from tools.harness.cluster.cluster import NAMESPACE, NODE, Cluster
from tools.harness.cluster.credentials import CONTROLLER_MANAGER
from tools.harness.cluster.helm import CLAIMS, NOBODY, Helm
from tools.harness.cluster.pods import CORE, COUNT, MEMORY, container, pod
from tools.harness.cluster.processes import ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL

NOWHERE = {"e2e": "nowhere"}
POLICIES = (
    *("claims-made", "claims-elsewhere", "claims-kept", "claims-held", "claims-whole"),
    *("agent-slices", "pods", "claims-pods"),
)
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
OWN_CLAIM = {"name": "disk", "resourceClaimTemplateName": "disks"}


def sidecar(memory: int, core: int, name: str) -> dict[str, Any]:
    """An init container that stays."""
    return asking(memory, core, name=name, restartPolicy="Always")


@dataclass(frozen=True, slots=True)
class Made:
    """A pod, and the claim of each of its containers; "" where it has none."""

    name: str
    pod: Mapping[str, Any]
    claims: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()


MADE = [
    Made("one", pod("p", asking(2, 30)), {"main": "slice-2-30-c0"}),
    Made("memory", pod("p", asking(4)), {"main": "slice-4-0-c0"}),
    Made("nothing", pod("p", container("main")), {"main": ""}),
    Made(
        "one-of-two",
        pod("p", container("first"), asking(2, 30, name="second")),
        {"first": "", "second": "slice-2-30-c1"},
    ),
    Made(
        "two-alike",
        pod("p", asking(2, 30), asking(2, 30, name="second")),
        {"main": "slice-2-30-c0", "second": "slice-2-30-c1"},
    ),
    Made(
        "init-shares-the-first-of-its-shape",
        pod(
            "p",
            asking(1, 5),
            asking(2, 30, name="second"),
            asking(2, 30, name="third"),
            initContainers=[asking(2, 30, name="before"), asking(3, 30, name="other")],
        ),
        {
            "main": "slice-1-5-c0",
            "second": "slice-2-30-c1",
            "third": "slice-2-30-c2",
            "before": "slice-2-30-c1",
            "other": "slice-3-30-i1",
        },
    ),
    Made(
        "a-sidecar-has-its-own",
        pod("p", asking(2, 30), initContainers=[sidecar(2, 30, "beside")]),
        {"main": "slice-2-30-c0", "beside": "slice-2-30-i0"},
    ),
    Made(
        "ordinary-inits-alike-have-one-each-where-no-app-container-has-it",
        pod(
            "p",
            asking(1, 5),
            initContainers=[asking(2, 30, name="first"), asking(2, 30, name="then")],
        ),
        {"main": "slice-1-5-c0", "first": "slice-2-30-i0", "then": "slice-2-30-i1"},
    ),
    Made(
        "sidecars-and-inits-beside-an-app-container-of-their-shape",
        pod(
            "p",
            container("plain"),
            asking(2, 30),
            initContainers=[
                sidecar(2, 30, "beside"),
                asking(2, 30, name="before"),
                sidecar(2, 30, "too"),
            ],
        ),
        {
            "plain": "",
            "main": "slice-2-30-c1",
            "beside": "slice-2-30-i0",
            "before": "slice-2-30-c1",
            "too": "slice-2-30-i2",
        },
    ),
    Made("whole-card-by-percent", pod("p", asking(2, 100)), {"main": "slice-2-100-c0"}),
    Made(
        "numbers",
        pod("p", container("main", resources={"limits": {MEMORY: 2, CORE: 30}})),
        {"main": "slice-2-30-c0"},
    ),
    Made(
        "limits-and-requests",
        pod(
            "p",
            container(
                "main",
                resources={
                    k: {MEMORY: "2", CORE: "30", "cpu": "1"} for k in ("limits", "requests")
                },
            ),
        ),
        {"main": "slice-2-30-c0"},
        others=("cpu",),
    ),
    Made("cards", pod("p", asking(8)), {"main": "slice-8-0-x2-c0"}, several("2")),
    Made("one-card", pod("p", asking(8)), {"main": "slice-8-0-c0"}, several("1")),
    Made("most-cards", pod("p", asking(64)), {"main": "slice-64-0-x32-c0"}, several("32")),
    Made(
        "nothing-is-asked-by-0",
        pod("p", asking(2), asking(0, name="second"), initContainers=[asking(0, name="before")]),
        {"main": "slice-2-0-c0", "second": "", "before": ""},
    ),
    *(
        Made(f"spelt-{text}", pod("p", asking(text, 30)), {"main": f"slice-{units}-30-c0"})
        for text, units in (
            ("2000m", 2),
            ("1k", 1000),
            ("1Ki", 1024),
            ("2e1", 20),
            ("0.2e1", 2),
            ("2.0", 2),
            ("2e0", 2),
            ("2E0", 2),
            ("+2", 2),
            ("0.002k", 2),
            ("2000000u", 2),
            ("002", 2),
        )
    ),
    Made(
        "forty",
        pod("p", *(asking(2, 30, name=f"c{n}") for n in range(40))),
        {f"c{n}": f"slice-2-30-c{n}" for n in range(40)},
    ),
]


def containers(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All containers of a pod."""
    return [*made["spec"]["containers"], *made["spec"].get("initContainers", ())]


def claims_of(made: Mapping[str, Any]) -> dict[str, str]:
    """Container -> names of its claims."""
    return {
        c["name"]: " ".join(claim["name"] for claim in c["resources"].get("claims", ()))
        for c in containers(made)
    }


@pytest.fixture(scope="module")
def server(cluster: Cluster, serving_agent: Agent) -> Iterator[Submission]:
    """The API server with the chart's policies, and a namespace that uses no claims."""
    serving_agent.stop()
    with claims_installed(cluster):
        cluster.kubectl("create", "namespace", "plain")
        cluster.apply(*runtime_classes())
        admin = Submission(cluster)
        wait_for("pods are rewritten", lambda: is_rewritten(admin, "default"))
        wait_for("pods are judged", lambda: not admin.create(pod("p", asking(2, 7))).is_accepted)
        made = claim_of_hand()
        wait_for("claims are judged", lambda: not admin.create(made).is_accepted)
        yield admin
        cluster.kubectl("delete", "pod", "--all", "--grace-period=1")
        cluster.kubectl("delete", "namespace", "plain")
        cluster.kubectl("delete", "runtimeclass", "--all")


def claim_of_hand() -> dict[str, Any]:
    """A claim that asks for a whole card, as a person writes it."""
    request = {"name": "mine", "exactly": {"deviceClassName": "gpu-slice"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "by-hand"},
        "spec": {"devices": {"requests": [request]}},
    }


def test_each_shape_of_a_pod_gets_the_claims_it_has_to(server: Submission) -> None:
    """Limits and requests of our resources are gone, everything else is as it was."""
    wrong = []
    for row in MADE:
        made = json.loads(json.dumps(row.pod))
        made["metadata"]["labels"] |= row.labels
        answer = server.create(made)
        found = claims_of(answer.made) if answer.is_accepted else {}
        left = [key for c in containers(answer.made) for side in ("limits", "requests")
                for key in c["resources"].get(side, {})
                if key not in row.others] if found else []  # fmt: skip
        named = {each["name"] for each in answer.made.get("spec", {}).get("resourceClaims", ())}
        if found != row.claims or left or named != set(row.claims.values()) - {""}:
            wrong.append(f"{row.name}: {answer} {found} {left} {named}")
    assert not wrong


def test_own_claims_and_other_resources_of_a_pod_stay(server: Submission) -> None:
    mine = asking(2, 30)
    mine["resources"] |= {"claims": [{"name": "disk"}]}
    mine["resources"]["limits"]["cpu"] = "1"
    made = server.create(pod("p", mine, resourceClaims=[OWN_CLAIM])).made

    assert claims_of(made) == {"main": "disk slice-2-30-c0"}
    assert OWN_CLAIM in made["spec"]["resourceClaims"]
    (main,) = made["spec"]["containers"]
    assert main["resources"]["limits"] == main["resources"]["requests"] == {"cpu": "1"}
    assert made["metadata"]["annotations"]["gpu-device-plugin/asked"] == "main: 2, 30 %"


def is_rewritten(server: Submission, namespace: str) -> bool | None:
    """Whether a pod that is created there now gets a claim; None while it is refused, between the two."""
    answer = server.create(pod("p", asking(2, 30)), namespace)
    if not answer.is_accepted:
        assert "cannot become a claim" in answer.text
        return None
    made = answer.made
    limits = made["spec"]["containers"][0]["resources"].get("limits")
    assert (claims_of(made), limits) in (
        ({"main": "slice-2-30-c0"}, None),
        ({"main": ""}, {MEMORY: "2", CORE: "30"}),
    )
    return limits is None


def test_a_namespace_uses_claims_while_it_has_the_label(
    cluster: Cluster, server: Submission
) -> None:
    """Without it a pod is left as it is; what tenants may make themselves, the template, opens no allocation API."""
    assert is_rewritten(server, "plain") is False
    label = ("label", "namespace", "plain", "--overwrite")
    cluster.kubectl(*label, f"{ALLOCATION_API_LABEL}=dra")
    wait_for("pods are rewritten", lambda: is_rewritten(server, "plain"))
    cluster.kubectl(*label, f"{ALLOCATION_API_LABEL}=device-plugin")
    wait_for("pods are left", lambda: is_rewritten(server, "plain") is False)


def test_every_row_that_is_refused_elsewhere_is_refused_here_in_the_same_words(
    server: Submission,
) -> None:
    """A privileged pod as well, although its limits are gone when the rules see it."""
    wrong = []
    for row in ROWS:
        answer = server.create(row.pod())
        if answer.is_accepted is bool(row.words) or not all(w in answer.text for w in row.words):
            wrong.append(f"{row.name}: {answer}")
    assert not wrong


def test_a_pod_past_the_scheduler_is_refused(server: Submission) -> None:
    """The kubelet would wait for ever for its claim."""
    answer = server.create(pod("p", asking(2, 30), nodeName=NODE))

    assert "use nodeSelector kubernetes.io/hostname" in answer.text
    assert server.create(pod("p", container("main"), nodeName=NODE)).is_accepted


def holding_claims(*claims: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A container that names claims itself, beside its limits."""
    limits = {"limits": more.pop("limits", {})}
    named = [{"name": claim} for claim in claims]
    return container(name, resources=limits | {"claims": named}, **more)


def naming(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod of a tenant that names its containers' claims itself, as those of our template."""
    every = (*containers, *more.get("initContainers", ()))
    named = {claim["name"] for c in every for claim in c.get("resources", {}).get("claims", ())}
    claims = [{"name": name, "resourceClaimTemplateName": "gpu-slice"} for name in sorted(named)]
    return pod("p", *containers, resourceClaims=claims, **more)


MINE, OTHER = "slice-2-30-c0", "slice-4-30-c7"
BY_CLASS = "deviceclass.resource.kubernetes.io/gpu-card"
SEVERAL = "container main asks for several GPU resources"
HAND_MADE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two claims": (naming(holding_claims(MINE, OTHER)), [SEVERAL, MINE, OTHER]),
    "a claim of another form beside a limit": (
        naming(holding_claims(OTHER, limits={MEMORY: "2", CORE: "30"})),
        [SEVERAL, MINE, OTHER],
    ),
    "a whole card beside a claim": (
        naming(holding_claims(MINE, limits={"nvidia.com/gpu": "1"})),
        [SEVERAL, MINE, "nvidia.com/gpu"],
    ),
    "a whole card by the name of its class": (
        naming(holding_claims(MINE, limits={BY_CLASS: "1"})),
        [SEVERAL, MINE, BY_CLASS],
    ),
    "two claims of an init container": (
        naming(container("app"), initContainers=[holding_claims(MINE, OTHER)]),
        [SEVERAL],
    ),
    "one claim of two containers": (
        naming(holding_claims(MINE), holding_claims(MINE, name="second")),
        [f"{MINE} is named by several containers"],
    ),
    "one claim of a sidecar too": (
        naming(
            holding_claims(MINE),
            initContainers=[holding_claims(MINE, name="beside", restartPolicy="Always")],
        ),
        [f"{MINE} is named by several containers"],
    ),
}


BY_NAME = {"name": MINE, "resourceClaimName": "of-another-pod"}
OF_TEMPLATE = {"name": MINE, "resourceClaimTemplateName": "gpu-slice"}
HAND_MADE |= {
    "a claim that no container names": (
        pod("p", container("main"), resourceClaims=[OF_TEMPLATE]),
        [f"no container names the slice {MINE} of spec.resourceClaims"],
    ),
    "a claim that no container names past the scheduler": (
        pod("p", container("main"), resourceClaims=[OF_TEMPLATE], nodeName=NODE),
        [f"spec.nodeName={NODE} does not go with a slice"],
    ),
    "another pod's claim under the name of a slice": (
        pod("p", holding_claims(MINE), resourceClaims=[BY_NAME]),
        [f"the slice {MINE} of spec.resourceClaims names a claim that is there"],
    ),
}


@pytest.mark.parametrize("row", HAND_MADE)
def test_a_container_has_one_slice_and_a_slice_one_container(server: Submission, row: str) -> None:
    made, words = HAND_MADE[row]
    text = server.create(made).text
    assert all(word in text for word in words), text


def test_claims_that_a_pod_names_as_the_policy_would_are_accepted(server: Submission) -> None:
    """One each, and an ordinary init container may share."""
    made = naming(
        holding_claims(MINE),
        holding_claims(OTHER, name="second"),
        initContainers=[holding_claims(MINE, name="before")],
    )
    assert server.create(made).is_accepted


def test_a_request_that_no_claim_can_carry_is_refused_and_not_left_pending(
    server: Submission,
) -> None:
    """In namespaces that use claims; elsewhere it is the device plugin's."""
    cards = _with_label(pod("p", asking(66)), "33")
    huge = pod("p", asking(1_000_000_000))

    assert "gpu-count=33, and a claim has at most 32 cards" in server.create(cards).text
    assert "aliyun.com/gpu-mem is larger than any card" in server.create(huge).text
    assert server.create(cards, "plain").is_accepted
    nothing = server.create(pod("p", asking(0)))
    assert nothing.is_accepted
    assert claims_of(nothing.made) == {"main": ""}


PRIVILEGED = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (PRIVILEGED, "container main holds a slice and is privileged"),
        (
            {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
            "adds the capability SYS_ADMIN",
        ),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_a_pod_that_names_such_a_claim_itself_is_held_to_the_rules(
    server: Submission, changed: dict[str, Any], words: str
) -> None:
    """As if its limits had been rewritten; in an init container as well."""
    made = _named("p", "slice-2-30-c0")
    made["spec"]["containers"][0] |= changed
    assert words in server.create(made).text

    first = _named("p", "slice-2-30-i0")
    (main,) = first["spec"]["containers"]
    first["spec"]["initContainers"] = [main | changed]
    first["spec"]["containers"] = [container("app")]
    assert words in server.create(first).text
    beyond = _named("p", "slice-2-30-c0") | {}
    beyond["spec"]["nodeName"] = NODE
    assert "use nodeSelector" in server.create(beyond).text


def test_a_claim_by_hand_is_refused_whoever_writes_it(server: Submission) -> None:
    """It would pass every rule for pods; other classes are nobody's business."""
    other = claim_of_hand()
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "disk"
    hidden = claim_of_hand()
    alternative = {"name": "a", "deviceClassName": "gpu-memory"}
    hidden["spec"]["devices"]["requests"] = [{"name": "mine", "firstAvailable": [alternative]}]

    assert "are made by kube-controller-manager" in server.create(claim_of_hand()).text
    assert "are made by kube-controller-manager" in server.create(hidden).text
    assert server.create(other).is_accepted


ALTERNATIVE = {
    "name": "slice",
    "deviceClassName": "gpu-slice",
    "count": 2,
    "tolerations": [{"operator": "Exists"}],
    "capacity": {"requests": {"memory": "7Gi", "cores": "50"}},
}
EXACT = {"name": "slice", "exactly": {"deviceClassName": "gpu-slice"}}
CLAIM_ROWS: dict[str, tuple[str, list[Any], str]] = {
    "of our template": ("slice-1-5-c0", [EXACT], ""),
    "with amounts of its own": (
        "slice-1-5-c0",
        [{"name": "slice", "exactly": {k: v for k, v in ALTERNATIVE.items() if k != "name"}}],
        "",
    ),
    "first available": (
        "slice-1-5-c0",
        [{"name": "slice", "firstAvailable": [ALTERNATIVE]}],
        "has one request, and no firstAvailable",
    ),
    "two requests": (
        "slice-1-5-c0",
        [EXACT, EXACT | {"name": "another"}],
        "has one request, and no firstAvailable",
    ),
    "a name of another form": ("mine", [EXACT], "tells no slice"),
    "a name with a percentage that nobody may ask": ("slice-1-6-c0", [EXACT], "tells no slice"),
}


def claim_of_template(name: str, requests: list[Any]) -> dict[str, Any]:
    """A claim as kube-controller-manager makes it of a tenant's template."""
    made = claim_of_hand()
    made["metadata"]["annotations"] = {POD_CLAIM_NAME: name}
    made["spec"]["devices"]["requests"] = requests
    return made


def test_what_a_tenants_template_asks_is_filled_in_from_the_name_or_refused(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - installs the policies
) -> None:
    """Whatever stands in the template: amounts, counts, tolerations."""
    maker = Submission(cluster, user=CONTROLLER_MANAGER.name)
    wrong = []
    for row, (name, requests, words) in CLAIM_ROWS.items():
        answer = maker.create(claim_of_template(name, requests))
        if answer.is_accepted is bool(words) or words not in answer.text:
            wrong.append(f"{row}: {answer}")
        if answer.is_accepted:
            (request,) = answer.made["spec"]["devices"]["requests"]
            amounts = {"requests": {"memory": "1Gi", "cores": "5"}}
            asked = {"deviceClassName": "gpu-slice", "allocationMode": "ExactCount"}
            assert request["exactly"] == asked | {"count": 1, "capacity": amounts}
    assert not wrong


def test_no_claim_is_made_in_a_namespace_without_the_label(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - installs the policies
) -> None:
    """A tenant can write the template, and a pod that names a claim, but not the label."""
    made = claim_of_template("slice-8-50-c0", [EXACT])
    maker = Submission(cluster, user=CONTROLLER_MANAGER.name)

    answer = maker.create(made, "plain")
    assert f"with the label {ALLOCATION_API_LABEL}=dra, and plain has it not" in answer.text
    assert maker.create(made).is_accepted


def test_nobody_becomes_an_owner_of_a_claim_that_is_there(
    cluster: Cluster, server: Submission
) -> None:
    """Its owner may have the slice; what the garbage collector and the scheduler write stays possible."""
    cluster.apply(pod("owner", asking(2, 30), nodeSelector=NOWHERE))
    wait_for("its claim is made", lambda: len(cluster.every("resourceclaim")) == 1, 60)
    (claim,) = cluster.every("resourceclaim")
    meta = claim["metadata"]
    (owner,) = meta["ownerReferences"]
    path = path_of("ResourceClaim", NAMESPACE, meta["name"])
    another = {"apiVersion": "v1", "kind": "Pod", "name": "evil", "uid": "22222222"}

    def patched(**changes: Any) -> str:
        return server.patch(path, {"metadata": changes}).text

    further = "gets no further owner"
    assert further in patched(ownerReferences=[owner, another])
    assert further in patched(ownerReferences=[owner | {"uid": "22222222"}])
    assert "keeps its name in its pod" in patched(annotations={POD_CLAIM_NAME: "slice-9-90-c0"})
    assert "keeps its name in its pod" in patched(annotations={POD_CLAIM_NAME: None})
    assert not patched(ownerReferences=[owner | {"blockOwnerDeletion": False}])
    assert not patched(ownerReferences=None)
    assert not patched(
        labels={"mine": "yes"}, finalizers=["resource.kubernetes.io/delete-protection"]
    )
    cluster.kubectl("delete", "pod", "--all", "--grace-period=1")


BY_LIMITS = {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "7f4f0e1e-1"}


def test_a_claim_of_whole_cards_names_no_amounts(server: Submission) -> None:
    """They would be a slice that no rule has seen. And such a claim is one pod's, as the agent wants it."""
    whole = claim_of_hand()
    (request,) = whole["spec"]["devices"]["requests"]
    request["exactly"]["deviceClassName"] = "gpu-card"
    assert "ask nvidia.com/gpu in the pod's limits" in server.create(whole).text
    whole["metadata"]["ownerReferences"] = [OWNER]
    assert server.create(whole).is_accepted

    part = json.loads(json.dumps(whole))
    amounts = {"requests": {"memory": "1Gi"}}
    part["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = amounts
    assert "takes whole cards and names no capacity" in server.create(part).text
    named = json.loads(json.dumps(whole))
    named["metadata"]["annotations"] = {POD_CLAIM_NAME: MINE}
    assert "tells a slice, and a claim of gpu-card is whole cards" in server.create(named).text
    owned = json.loads(json.dumps(whole))
    owned["metadata"]["ownerReferences"].append(OWNER | {"name": "q", "uid": "7f4f0e1e-2"})
    assert "a claim of gpu-card is one pod's" in server.create(owned).text
    several = json.loads(json.dumps(whole))
    several["spec"]["devices"]["requests"].append({**request, "name": "another"})
    assert "has one request" in server.create(several).text
    assert server.create(several | {"metadata": several["metadata"] | BY_LIMITS}).is_accepted
    hidden = json.loads(json.dumps(whole))
    alternative = {"name": "a", "deviceClassName": "gpu-card", "capacity": amounts}
    hidden["spec"]["devices"]["requests"] = [{"name": "mine", "firstAvailable": [alternative]}]
    assert "takes whole cards and names no capacity" in server.create(hidden).text


def test_a_claim_of_whole_cards_tolerates_no_taint(server: Submission) -> None:
    """A card that is out, or of a node that is leaving, is nobody's."""
    whole = claim_of_hand()
    (request,) = whole["spec"]["devices"]["requests"]
    tolerations = [{"operator": "Exists"}]
    request["exactly"] |= {"deviceClassName": "gpu-card", "tolerations": tolerations}
    whole["metadata"]["ownerReferences"] = [OWNER]

    assert "tolerates no taint" in server.create(whole).text


def test_applying_a_bare_pod_again_changes_nothing_and_other_amounts_are_refused(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - installs the policies
) -> None:
    """As without claims, where a pod's resources cannot be changed either."""
    made = pod("bare", asking(2, 30), nodeSelector=NOWHERE)
    cluster.apply(made)
    before = cluster.get("pod", "bare")["spec"]
    cluster.apply(made)
    assert cluster.get("pod", "bare")["spec"] == before

    more = json.loads(json.dumps(made).replace('"2"', '"3"'))
    with pytest.raises(Exception, match="pod updates may not change fields"):
        cluster.apply(more)


def test_a_claim_says_what_its_name_says(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - installs the policies
) -> None:
    """Made by kube-controller-manager from the one template; a name that lies makes none."""
    cluster.apply(
        pod("two", asking(2, 30), asking(1, 5, name="second"), nodeSelector=NOWHERE),
        _with_label(pod("cards", asking(8), nodeSelector=NOWHERE), "2"),
        _named("liar", "slice-2-31-c0"),
    )
    wait_for("three claims are made", lambda: len(_requests(cluster)) == 3, 60)

    assert _requests(cluster) == {
        "slice-2-30-c0": ("gpu-slice", 1, {"memory": "2Gi", "cores": "30"}),
        "slice-1-5-c1": ("gpu-slice", 1, {"memory": "1Gi", "cores": "5"}),
        "slice-8-0-x2-c0": ("gpu-memory", 2, {"memory": "4Gi"}),
    }
    text = "tells no slice"
    wait_for("the lie is told", lambda: text in cluster.kubectl("get", "events"), 60)
    cluster.kubectl("delete", "pod", "--all", "--grace-period=1")


@pytest.mark.parametrize("device_class", ["gpu-slice", "gpu-card"])
def test_a_claim_is_its_own_pods_alone(
    cluster: Cluster, server: Submission, device_class: str
) -> None:
    """A second pod that names it would run on a card that no rule has seen it ask for."""
    is_whole = device_class == "gpu-card"
    asked = container("main") if is_whole else asking(2, 30)
    cluster.apply(pod("owner", asked, nodeSelector=NOWHERE))
    if is_whole:
        cluster.apply(_whole_of(cluster.get("pod", "owner")))
    wait_for("its claim is made", lambda: len(cluster.every("resourceclaim")) == 1, 60)
    (claim,) = cluster.every("resourceclaim")
    (owner,) = claim["metadata"]["ownerReferences"]
    (request,) = claim["spec"]["devices"]["requests"]
    given = {"driver": "gpu-device-plugin", "pool": "n1", "device": "gpu-0"}
    allocation = {"devices": {"results": [given | {"request": request["name"]}]}}

    def reserve(*uids: str) -> str:
        held = [{"resource": "pods", "name": uid[:8], "uid": uid} for uid in uids]
        status = {"status": {"allocation": allocation, "reservedFor": held}}
        name = claim["metadata"]["name"]
        patch = ("patch", "resourceclaim", name, "--subresource=status", "--type=merge")
        return cluster.kubectl(*patch, "--dry-run=server", "-p", json.dumps(status))

    assert "patched" in reserve(owner["uid"])
    for uids in (("another",), (owner["uid"], "another")):
        with pytest.raises(Exception, match="is for the pod that it was made for"):
            reserve(*uids)
    path = path_of("ResourceClaim", NAMESPACE, claim["metadata"]["name"])
    further = {"metadata": {"ownerReferences": [owner, OWNER]}}
    assert "gets no further owner" in server.patch(path, further).text
    cluster.kubectl("delete", "pod", "--all", "--grace-period=1")
    wait_for("the claim is gone", lambda: not cluster.every("resourceclaim"), 60)


def _whole_of(owner: Mapping[str, Any]) -> dict[str, Any]:
    """A claim of a whole card that belongs to this pod, as kube-scheduler makes it."""
    made = claim_of_hand()
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu-card"
    meta = {key: owner["metadata"][key] for key in ("name", "uid")}
    made["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", **meta}]
    return made


def test_the_sources_own_samples_become_claims_where_they_are_pods_of_slices(
    server: Submission,
) -> None:
    """Unchanged; what they make is accepted, and pods of slices have claims."""
    found = 0
    for path in SAMPLES:
        for made in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if (
                not made
                or made.get("kind") != "Pod"
                or MEMORY not in path.read_text(encoding="utf-8")
            ):
                continue
            answer = server.create(made)
            assert answer.is_accepted, (path, answer)
            asked = [
                c for c in containers(made) if MEMORY in c.get("resources", {}).get("limits", {})
            ]
            claims = claims_of(answer.made)
            assert all(claims[c["name"]].startswith("slice-") for c in asked), path
            found += bool(asked)
    assert found


@pytest.mark.parametrize("name", POLICIES)
def test_the_server_finds_nothing_wrong_with_the_text_of_a_policy(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - installs the policies
    name: str,
) -> None:
    def checked() -> list[Any]:
        policy = cluster.get("validatingadmissionpolicy", f"gpu-device-plugin-{name}")
        status = policy.get("status", {})
        return [status["typeChecking"]] if "typeChecking" in status else []

    assert wait_for("the policy is type-checked", checked) == [{}]


def test_a_namespace_that_is_not_there_is_refused_before_anything_is_changed(
    cluster: Cluster,
    server: Submission,  # noqa: ARG001 - the chart is installed
) -> None:
    """Else a release would stay behind that has half of its objects."""
    helm = Helm(cluster)
    before = helm("history", helm.release)
    with pytest.raises(ProgramError, match="there is no namespace nowhere"):
        helm.install(NOBODY, *CLAIMS, "dra.namespaces={default,nowhere}")
    assert helm("history", helm.release) == before


def test_the_chart_works_again_after_an_uninstall_without_a_restart_of_the_server(
    cluster: Cluster, server: Submission
) -> None:
    """In the namespace of before and in another one; twice, as after a second thought."""
    chosen = (*CLAIMS[:1], "dra.namespaces={default,plain}")
    cluster.kubectl("label", "namespace", "plain", "--overwrite", f"{ALLOCATION_API_LABEL}=dra")
    helm = Helm(cluster)
    for _ in range(2):
        helm.uninstall()
        wait_for("pods are left", lambda: is_rewritten(server, "default") is False)
        helm.install(NOBODY, *chosen)
        wait_for("pods are rewritten", lambda: is_rewritten(server, "default"))
        wait_for("and in the other namespace", lambda: is_rewritten(server, "plain"))
        cluster.apply(pod("again", asking(2, 30), nodeSelector=NOWHERE))
        wait_for("its claim is made", lambda: len(_requests(cluster)) == 1, 60)
        assert _requests(cluster)["slice-2-30-c0"][0] == "gpu-slice"
        cluster.kubectl("delete", "pod", "--all", "--grace-period=1")
        wait_for("its claim is gone", lambda: not _requests(cluster), 60)


def _with_label(made: dict[str, Any], count: str) -> dict[str, Any]:
    made["metadata"]["labels"][COUNT] = count
    return made


def _named(name: str, claim: str) -> dict[str, Any]:
    """A pod that names a claim itself."""
    holding = container("main", resources={"claims": [{"name": claim}]})
    mine = {"name": claim, "resourceClaimTemplateName": "gpu-slice"}
    return pod(name, holding, resourceClaims=[mine], nodeSelector=NOWHERE)


def _requests(cluster: Cluster) -> dict[str, tuple[str, int, Mapping[str, str]]]:
    """Name in its pod -> class, count and capacities of each claim."""
    found = {}
    for claim in cluster.every("resourceclaim"):
        name = claim["metadata"]["annotations"][POD_CLAIM_NAME]
        (request,) = claim["spec"]["devices"]["requests"]
        asked = request["exactly"]
        distinct = [{"distinctAttribute": "gpu-device-plugin/uuid"}] if asked["count"] > 1 else []
        assert claim["spec"]["devices"].get("constraints", []) == distinct
        # kube-scheduler writes it before it allocates: here no node fits.
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        found[name] = (asked["deviceClassName"], asked["count"], asked["capacity"]["requests"])
    return found
