"""The promise: what a pod's labels ask becomes node affinity, by rules that change without a restart."""

import asyncio
import io
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.controller.replica import Running, a_controller, a_replica
from tests.controller.reviews import Json, applied, review
from tools.harness.api_server import ApiRequest, running, status
from tools.harness.objects import node
from tools.harness.waiting import until

from gpu_device_plugin.kubernetes.objects.admission_review import read_review
from gpu_device_plugin.settings.controller_settings import Translation
from gpu_device_plugin.web.extender_server import MUTATE, NAME_SCHEDULER

MODEL, DRIVER = "alibabacloud.com/gpu-model-series", "alibabacloud.com/gpu-driver-version"
CLASS = "alibabacloud.com/compute-class"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
# S0's examples, of the pod with T4 for its placeholder: tests/sources compares them with the document.
S0_POD, S0_PROFILE = (
    yaml.safe_load(Path("samples/acs", name).read_text(encoding="utf-8"))
    for name in ("gpu-pod-with-model-and-driver.yaml", "acs-profile.yaml")
)
S0_SELECTORS = S0_PROFILE["data"]["selectors"]


def a_pod(**labels: str) -> Json:
    """A pod with these labels: `compute_class`, `model`, `driver`, or any other."""
    keys = {"compute_class": CLASS, "model": MODEL, "driver": DRIVER}
    values = {keys.get(key, key): value for key, value in labels.items()}
    metadata: Json = {"name": "p", "labels": values} if values else {"name": "p"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "a"}]}}


def required(pod: Json) -> dict[str, list[str]]:
    """What its node affinity requires, where there is one alternative."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    found = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = found.get("nodeSelectorTerms", [{}])
    assert len(terms) == 1
    return {each["key"]: each["values"] for each in terms[0].get("matchExpressions", [])}


async def ask(found: Running, body: Any, path: str = MUTATE) -> Any:
    """The decoded answer; status and text where it is no JSON."""
    url = f"http://127.0.0.1:{found.controller.server.port}{path}"
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with found.session.post(url, data=data) as response:
        text = await response.text()
        return json.loads(text) if response.status == 200 else (response.status, text)


async def mutated(found: Running, pod: Json, **request: Any) -> Json:
    """The pod as it is stored."""
    return applied(pod, await ask(found, review(pod, **request)))


async def configure(found: Running, name: str, **data: str) -> None:
    """Write one of the ConfigMaps."""
    value = {"metadata": {"name": name, "namespace": "kube-system", "uid": "cm"}, "data": data}
    await found.server.put(f"{MAPS}/{name}", value)


@pytest.mark.parametrize(
    ("metadata", "name"), [({"name": "p"}, "p"), ({"generateName": "p-"}, "p-"), ({}, "")]
)
def test_a_review_says_which_pod_it_is_about(metadata: Json, name: str) -> None:
    """Of a Deployment's pod the API server has yet to make the name."""
    pod = {"metadata": metadata, "spec": {"containers": []}}

    assert read_review(json.dumps(review(pod)).encode()).name == name


async def test_the_sources_pod_goes_where_its_model_and_driver_are(tmp_path: Path) -> None:
    """R-002, R-006, R-012: the example with T4 and 535.161.08."""
    async with a_controller(tmp_path, ()) as found:
        stored = await mutated(found, S0_POD)

    assert required(stored) == {MODEL: ["T4"], DRIVER: ["535.161.08"]}
    assert stored["metadata"] == S0_POD["metadata"]
    assert stored["spec"]["containers"] == S0_POD["spec"]["containers"]


async def test_a_driver_that_is_not_served_is_refused_with_those_that_are(tmp_path: Path) -> None:
    """R-007: the text reaches who creates the pod."""
    async with a_controller(tmp_path, ()) as found:
        answer = await ask(found, review(a_pod(compute_class="gpu", model="T4", driver="999")))

    assert answer["response"] == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "alibabacloud.com/gpu-driver-version '999' is not served for T4. "
            "Served: 525.105.17, 535.161.08, 570.133.20, 580.95.05-open",
        },
    }


async def test_the_sources_selector_gives_its_pods_a_driver_without_a_restart(
    tmp_path: Path,
) -> None:
    """R-009, R-010: verbatim; other keys of the ConfigMap are left alone."""
    hpn = a_pod(compute_class="gpu-hpn")
    async with a_controller(tmp_path, ()) as found:
        before = await mutated(found, hpn)
        await configure(found, "acs-profile", selectors=S0_SELECTORS, vpcId="vpc-1")
        await until(lambda: len(found.controller.models.rules.profile) == 1)
        after = await mutated(found, hpn)
        other = await mutated(found, a_pod(compute_class="performance"))
        kept = found.server.objects[f"{MAPS}/acs-profile"]["data"]

    assert before == hpn
    assert after["metadata"]["labels"][DRIVER] == "1.5.0"
    assert required(after) == {DRIVER: ["1.5.0"]}
    assert other == a_pod(compute_class="performance")
    assert kept["vpcId"] == "vpc-1"


async def test_a_profile_that_cannot_be_parsed_changes_nothing_and_is_told(tmp_path: Path) -> None:
    """R-602: an Event on the ConfigMap carries the error; a right one counts again."""
    hpn = a_pod(compute_class="gpu-hpn")
    async with a_controller(tmp_path, ()) as found:
        await configure(found, "acs-profile", selectors=S0_SELECTORS)
        await until(lambda: len(found.controller.models.rules.profile) == 1)
        await configure(found, "acs-profile", selectors="[{]")
        await until(lambda: found.server.seen("POST", "/events"))
        meanwhile = await mutated(found, hpn)
        await configure(found, "acs-profile", selectors="")
        await until(lambda: not found.controller.models.rules.profile)
        event = found.server.seen("POST", "/namespaces/kube-system/events")[0].body

    assert meanwhile["metadata"]["labels"][DRIVER] == "1.5.0"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "kube-system",
        "name": "acs-profile",
        "uid": "cm",
    }
    assert event["type"] == "Warning"
    assert event["message"].startswith("selectors: JSON is malformed")
    assert event["message"].endswith("that has read an earlier one keeps that")


async def test_a_replica_that_has_never_read_a_good_profile_refuses(tmp_path: Path) -> None:
    """Else it would admit without a profile what another replica admits with one."""
    hpn = a_pod(compute_class="gpu-hpn")
    meta = {"name": "acs-profile", "namespace": "kube-system", "uid": "cm"}
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(running())
        await server.put(f"{MAPS}/acs-profile", {"metadata": meta, "data": {"selectors": "[{]"}})
        replica = a_replica(server, tmp_path, "only", until_ready=False)
        found = await stack.enter_async_context(replica)
        rules = found.controller.models.rules
        await until(lambda: "ConfigMap kube-system/acs-profile: selectors: JSON" in rules.trouble)
        page = await found.get("/readyz", port=found.controller.pages.port)
        answer = await ask(found, review(hpn))
        await until(lambda: found.server.seen("POST", "/events"))
        event = found.server.seen("POST", "/events")[0].body
        await configure(found, "acs-profile", selectors=S0_SELECTORS)
        await until(lambda: not rules.trouble)
        mended = await mutated(found, hpn)

    assert page[0] == 503
    assert "acs-profile" in page[1]
    assert answer[0] == 503
    assert event["message"].endswith("until it is mended the webhook refuses")
    assert mended["metadata"]["labels"][DRIVER] == "1.5.0"


async def test_the_catalogue_is_the_operators(tmp_path: Path) -> None:
    """A series that is added counts at once; without the ConfigMap the packaged one does (R-016)."""
    own = a_pod(model="V100")
    async with a_controller(tmp_path, ()) as found:
        unknown = await ask(found, review(own))
        await configure(found, "gpu-device-plugin-models", models="V100: {drivers: ['1', '2']}")
        await until(lambda: "V100" in found.controller.models.rules.catalogue.series)
        known = await mutated(found, own)
        await found.server.delete(f"{MAPS}/gpu-device-plugin-models")
        await until(lambda: "V100" not in found.controller.models.rules.catalogue.series)

    assert "'V100' is not in the catalogue" in unknown["response"]["status"]["message"]
    assert required(known) == {MODEL: ["V100"]}


async def test_a_rule_selects_by_the_labels_of_a_namespace_that_is_new_too(tmp_path: Path) -> None:
    """The watch may be behind: then the namespace is read."""
    rule = {
        "name": "team",
        "namespaceSelector": {"matchLabels": {"team": "x"}},
        "effect": {"labels": {"new": "1"}, "annotations": {"note": "a"}},
    }
    async with a_controller(tmp_path, ()) as found:
        await configure(found, "acs-profile", selectors=json.dumps([rule]))
        await found.server.put("/api/v1/namespaces/x", {"metadata": {"labels": {"team": "x"}}})
        await until(lambda: len(found.controller.models.rules.profile) == 1)
        inside = await mutated(found, a_pod(), namespace="x")
        outside = await mutated(found, a_pod(), namespace="y")

    assert inside["metadata"] == {"name": "p", "labels": {"new": "1"}, "annotations": {"note": "a"}}
    assert outside == a_pod()


def in_koordinators_words(**more: str) -> Json:
    """A container that asks for 1.5 GiB and 30 % by Koordinator's names, and for some processor."""
    asked = {"koordinator.sh/gpu-memory": "1536Mi", "koordinator.sh/gpu-core": "30", "cpu": "500m"}
    resources = {"limits": {**asked, **more}, "requests": dict(asked), "claims": [{"name": "c"}]}
    plain: Json = {"name": "plain"}
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [plain, {"name": "a", "resources": resources}]},
    }


async def test_koordinators_names_are_translated_where_that_is_asked(tmp_path: Path) -> None:
    """R-590: a part of a unit is a whole one; what else the container asks for stays."""
    ours = {"cpu": "500m", "aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"}
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        stored = await mutated(found, in_koordinators_words())
        twice = await ask(found, review(in_koordinators_words(**{"aliyun.com/gpu-mem": "2"})))
    async with a_controller(tmp_path, ()) as found:
        off = await mutated(found, in_koordinators_words())

    plain, container = stored["spec"]["containers"]
    assert container["resources"] == {"limits": ours, "requests": ours, "claims": [{"name": "c"}]}
    assert plain == {"name": "plain"}
    assert "asks for aliyun.com/gpu-mem under two names" in twice["response"]["status"]["message"]
    assert off == in_koordinators_words()


async def test_a_request_for_several_cards_gets_the_label(tmp_path: Path) -> None:
    """R-590: a share of HAMi's on two cards; with another label it would be another pod."""
    asked = {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "20"}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": asked}}]}}
    wrong = {**pod, "metadata": {"name": "p", "labels": {"aliyun.com/gpu-count": "3"}}}
    async with a_controller(tmp_path, (node("n1"),), hami=Translation.GIB) as found:
        stored = await mutated(found, pod)
        refused = await ask(found, review(wrong))

    assert stored["metadata"]["labels"] == {"aliyun.com/gpu-count": "2"}
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "6"}
    assert "different numbers of cards" in refused["response"]["status"]["message"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"koordinator.sh/gpu-memory-ratio": "50"}, "exclude each other"),
        (
            {"nvidia.com/gpumem": "50"},
            "koordinator.sh/gpu-core, nvidia.com/gpucores under two names",
        ),
        ({"koordinator.sh/gpu-core": "zz"}, "'zz' is not a Kubernetes quantity"),
        ({"koordinator.sh/gpu.partition": "1"}, "asks for koordinator.sh/gpu.partition beside"),
    ],
)
async def test_what_has_no_translation_is_refused_with_the_reason(
    tmp_path: Path, more: dict[str, str], text: str
) -> None:
    """Half a translation would be another pod; several cards are not one."""
    both: dict[str, Any] = {"koordinator": Translation.GIB, "hami": Translation.GIB}
    async with a_controller(tmp_path, (), **both) as found:
        answer = await ask(found, review(in_koordinators_words(**more)))

    assert not answer["response"]["allowed"]
    assert answer["response"]["status"]["message"].startswith("container a: ")
    assert text in answer["response"]["status"]["message"]


@pytest.mark.parametrize("name", ["koordinator.sh/gpu.shared", "koordinator.sh/gpu.partition"])
async def test_a_name_of_the_dialect_that_says_no_part_of_a_card_is_refused(
    tmp_path: Path, name: str
) -> None:
    """Left where it is the pod would wait for ever: no node has that resource."""
    container = {"name": "a", "resources": {"limits": {name: "1"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        answer = await ask(found, review(pod))

    assert not answer["response"]["allowed"]
    assert (
        "a slice needs one of koordinator.sh/gpu-memory" in answer["response"]["status"]["message"]
    )


@pytest.mark.parametrize("more", [{}, {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}])
async def test_a_rank_that_slices_do_not_have_is_left_out_with_a_warning(
    tmp_path: Path, more: dict[str, str]
) -> None:
    """Left where it is the pod would wait for ever: no node has that resource."""
    asked = {"nvidia.com/gpu": "1", "nvidia.com/priority": "1", **more}
    container = {"name": "a", "resources": {"limits": asked}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    async with a_controller(tmp_path, (node("n1"),), hami=Translation.GIB) as found:
        stored = await mutated(found, pod)
        answer = await ask(found, review(pod))

    slice_of_it = {"aliyun.com/gpu-mem": "3", "aliyun.com/gpu-core.percentage": "30"}
    (changed,) = stored["spec"]["containers"]
    assert changed["resources"]["limits"] == (slice_of_it if more else {"nvidia.com/gpu": "1"})
    (warning,) = answer["response"]["warnings"]
    assert "nvidia.com/priority is left out" in warning
    assert len(warning) < 120


async def test_containers_are_read_only_where_other_names_are_translated(tmp_path: Path) -> None:
    """Elsewhere it would be work for each pod, and what is wrong with one is the API server's to say."""
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": 5}]}}
    async with a_controller(tmp_path, (node("n1"),)) as found:
        answer = await ask(found, review(pod))

    assert answer["response"]["allowed"]


async def test_requests_that_are_no_object_are_a_bad_body(tmp_path: Path) -> None:
    """Where Koordinator's names are translated, requests are written again."""
    bad = in_koordinators_words()
    bad["spec"]["containers"][1]["resources"]["requests"] = "zz"
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        answer = await ask(found, review(bad))

    assert answer[0] == 400
    assert "container a: requests are no object" in answer[1]


async def test_a_pod_gets_the_schedulers_name_where_that_is_asked(tmp_path: Path) -> None:
    """And nothing else; what is no new pod stays as it is, and /mutate names nobody's scheduler."""
    pod = a_pod(compute_class="gpu")
    named = {**a_pod(), "spec": {**a_pod()["spec"], "schedulerName": "default-scheduler"}}
    async with a_controller(tmp_path, (), name_scheduler="gpu-scheduler") as found:
        answers = [await ask(found, review(each), NAME_SCHEDULER) for each in (pod, named)]
        changed = await ask(found, review(pod, operation="UPDATE"), NAME_SCHEDULER)
        refused = await ask(found, b"[]", NAME_SCHEDULER)
    async with a_controller(tmp_path, ()) as found:
        unasked = await ask(found, review(pod), NAME_SCHEDULER)

    for before, answer in zip((pod, named), answers, strict=True):
        spec = {**before["spec"], "schedulerName": "gpu-scheduler"}
        assert applied(before, answer) == {**before, "spec": spec}
    assert applied(pod, changed) == pod
    assert (refused[0], unasked[0]) == (400, 404)


async def test_a_bad_profile_stops_neither_naming_nor_a_controller_without_models(
    tmp_path: Path,
) -> None:
    """An old ConfigMap of another program would else leave every new pod with the default scheduler."""
    async with a_controller(tmp_path, ()) as found:
        await configure(found, "acs-profile", selectors="{")
        async with a_replica(
            found.server, tmp_path, "new", name_scheduler="x", until_ready=False
        ) as new:
            await until(lambda: "acs-profile" in new.controller.models.rules.trouble)
            named = await ask(new, review(a_pod()), NAME_SCHEDULER)
            judged = await ask(new, review(a_pod()))
        async with a_replica(
            found.server, tmp_path, "bare", name_scheduler="x", models=False
        ) as bare:
            unserved = await ask(bare, review(a_pod()))
            asked = [each for each in found.server.requests if each.authorization == "Bearer bare"]

    assert named["response"]["allowed"]
    assert (judged[0], unserved[0]) == (503, 404)
    assert asked
    assert not [each for each in asked if "acs-profile" in str(each.query)]


async def test_nothing_is_answered_before_the_rules_are_known(tmp_path: Path) -> None:
    """A pod must not slip past a profile that is not read yet; the failurePolicy decides."""
    is_refused = asyncio.Event()

    def refuse(seen: ApiRequest) -> web.Response | None:
        is_map = "configmaps" in seen.path and not is_refused.is_set()
        return status(403, "no list for you") if is_map else None

    async with a_controller(tmp_path, (), fault=refuse, until_ready=False) as found:
        await until(lambda: found.controller.models.rules.trouble.startswith("list of"))
        page = await found.get("/readyz", port=found.controller.pages.port)
        answer = await ask(found, review(S0_POD))
        is_refused.set()
        await until(lambda: not found.controller.models.rules.trouble)
        later = await mutated(found, S0_POD)

    assert page[0] == 503
    assert answer[0] == 503
    assert required(later)[MODEL] == ["T4"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"request": {"uid": "u"}}',
        json.dumps({**review(S0_POD), "kind": "Pod"}).encode(),
        json.dumps(review({"metadata": {"labels": {"a": 1}}})).encode(),
        json.dumps(review({"metadata": []})).encode(),
        json.dumps(review({"spec": {"affinity": 7}})).encode(),
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","x":'
        + b"[" * 100_000,
    ],
)
async def test_a_bad_body_is_an_error_and_no_crash(tmp_path: Path, body: bytes) -> None:
    """And the next pod is answered."""
    async with a_controller(tmp_path, ()) as found:
        answer = await ask(found, body)
        after = await mutated(found, S0_POD)

    assert answer[0] == 400
    assert required(after)[MODEL] == ["T4"]


async def test_a_body_that_is_too_long_is_refused_unread(tmp_path: Path) -> None:
    """The API server takes no object of a third of that."""
    async with a_controller(tmp_path, ()) as found:
        answer = await ask(found, b" " * (8 * 1024 * 1024 + 1))

    assert answer[0] == 413


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"operation": "DELETE", "object": None},
    ],
)
async def test_what_is_no_new_pod_passes(tmp_path: Path, request_: Json) -> None:
    """Whatever somebody's webhook configuration sends."""
    async with a_controller(tmp_path, ()) as found:
        assert await mutated(found, S0_POD, **request_) == S0_POD


async def test_a_node_gets_the_series_of_its_cards_and_keeps_an_operators(tmp_path: Path) -> None:
    """R-004: by the catalogue, and again when that changes."""
    ours, theirs = node("n1"), node("n2")
    theirs["metadata"]["labels"] = {MODEL: "theirs"}
    v100 = "V100: {names: [Tesla V100-SXM2-16GB]}"

    def label(name: str) -> str | None:
        labels = found.server.objects[f"/api/v1/nodes/{name}"]["metadata"].get("labels") or {}
        return labels.get(MODEL)

    async with a_controller(tmp_path, (ours, theirs)) as found:
        none = label("n1")
        await configure(found, "gpu-device-plugin-models", models=v100)
        await until(lambda: label("n1") == "V100")
        await configure(found, "gpu-device-plugin-models", models=v100.replace("V100:", "BIG:"))
        await until(lambda: label("n1") == "BIG")
        await found.server.delete(f"{MAPS}/gpu-device-plugin-models")
        await until(lambda: label("n1") is None)
        patched = found.server.seen("PATCH", "/nodes/n2")

    assert none is None
    assert label("n2") == "theirs"
    assert patched == []
