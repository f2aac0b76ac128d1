"""Whom nobody knows may ask /mutate what he likes: it reads no other path, and holds nobody up."""

import json
import tracemalloc
from pathlib import Path

import pytest
from tests.controller.replica import a_controller
from tests.controller.reviews import Json, applied, review
from tests.controller.test_webhook import CLASS, MODEL, a_pod, ask, configure
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.request_rules import MOST_CONTAINERS
from gpu_device_plugin.domain.models.pod_admission import MOST_AFFINITY_BYTES
from gpu_device_plugin.kubernetes.objects.admission_review import read_review
from gpu_device_plugin.settings.controller_settings import Translation

_RULE = {
    "name": "team",
    "namespaceSelector": {"matchLabels": {"team": "x"}},
    "effect": {"labels": {"new": "1"}},
}


@pytest.mark.parametrize(
    "name",
    ["../pods", "kube-system/secrets/a", "x?watch=true", "x/", "x" * 64, "X", "\x1b]52;", "é"],
)
async def test_a_namespace_that_is_none_is_asked_for_nowhere(tmp_path: Path, name: str) -> None:
    """With the controller's token every list of the cluster is a path away."""
    async with a_controller(tmp_path, ()) as found:
        await configure(found, "acs-profile", selectors=json.dumps([_RULE]))
        await until(lambda: len(found.controller.models.rules.profile) == 1)
        before = len(found.server.seen("GET"))
        answer = await ask(found, review(a_pod(), namespace=name))
        asked = [each.path for each in found.server.seen("GET")[before:] if not each.query]

    assert asked == []
    assert answer[0] == 400
    assert "is no name of a namespace" in answer[1]


def with_terms(size: int, **labels: str) -> Json:
    """A pod whose affinity has so many bytes at least."""
    term = {"matchExpressions": [{"key": MODEL, "operator": "In", "values": ["T4"]}]}
    terms = [term] * (size // len(json.dumps(term)) + 1)
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = a_pod(**labels)
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    return pod


async def test_an_affinity_of_megabytes_is_neither_judged_nor_repeated(tmp_path: Path) -> None:
    """Only a pod that asks for a model or a driver is refused for it; others are as they were."""
    long = with_terms(4 * MOST_AFFINITY_BYTES, compute_class="gpu", model="T4")
    other = with_terms(4 * MOST_AFFINITY_BYTES, compute_class="performance")
    fits = with_terms(MOST_AFFINITY_BYTES // 2, compute_class="gpu", model="T4")
    assert CLASS in other["metadata"]["labels"]
    async with a_controller(tmp_path, ()) as found:
        refused = await ask(found, review(long))
        assert "spec.affinity has" in refused["response"]["status"]["message"]
        assert applied(other, await ask(found, review(other))) == other
        assert (await ask(found, review(fits)))["response"]["allowed"]


@pytest.mark.parametrize("times", [2, 32])
def test_what_is_kept_of_an_affinity_does_not_grow_with_it(times: int) -> None:
    """Judging is linear in it, and the answer has it once more."""
    pod = with_terms(times * MOST_AFFINITY_BYTES, compute_class="gpu", model="T4")
    read = read_review(json.dumps(review(pod)).encode()).pod
    assert read is not None
    assert read.affinity is None
    assert read.affinity_bytes >= times * MOST_AFFINITY_BYTES


@pytest.mark.parametrize("count", [1025, 600_000])
async def test_containers_are_not_kept_one_by_one(tmp_path: Path, count: int) -> None:
    """Three bytes are a container: a review of 8 MiB has 2.8 million of them."""
    pod = a_pod() | {"spec": {"containers": [{}] * count}}
    body = json.dumps(review(pod), separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        read_review(body)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        answer = await ask(found, review(pod))
    assert answer[0] == 400
    assert "/spec/containers has" in answer[1]


@pytest.mark.parametrize("count", [MOST_CONTAINERS, MOST_CONTAINERS + 1, 1000])
async def test_of_any_number_of_containers_few_are_translated(tmp_path: Path, count: int) -> None:
    """The answer has each of them once more."""
    asked = {"koordinator.sh/gpu-memory": "1Gi", "koordinator.sh/gpu-core": "5"}
    pod = a_pod()
    pod["spec"]["containers"] = [{"name": "a", "resources": {"limits": asked}}] * count
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        answer = (await ask(found, review(pod)))["response"]
    assert answer["allowed"] is (count <= MOST_CONTAINERS)


@pytest.mark.parametrize("kibi", [600, 1200])
async def test_an_answer_does_not_grow_with_what_a_review_repeats(
    tmp_path: Path, kibi: int
) -> None:
    """TLS keeps room for the longest answer of each of 256 connections."""
    pod, filler = a_pod(), "x" * (kibi << 10)
    limits = {"koordinator.sh/gpu-memory": "1Gi", "koordinator.sh/gpu-core": "5"}
    pod["spec"]["containers"] = [{"name": "a", "resources": {"limits": limits, "more": filler}}]
    async with a_controller(tmp_path, (), koordinator=Translation.GIB) as found:
        by_uid = await ask(found, review(a_pod(), uid=filler))
        by_resources = await ask(found, review(pod))
    assert by_uid == (400, f"the review's uid has {len(filler)} characters\n")
    assert "would need a patch of" in by_resources["response"]["status"]["message"]
