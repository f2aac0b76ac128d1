"""A pod's JSON becomes exactly the request that the domain reasons about."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import (
    devices_asked,
    koordinator_amounts,
    pod_request,
    scheduled_request,
    whole_request,
)

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"


def parsed(**fields: Any) -> Pod:
    """The pod with these fields, decoded from JSON as the API server sends it."""
    value = {"metadata": {"namespace": "ns", "name": "p", "uid": "u1"}, **fields}
    return msgspec.json.decode(msgspec.json.encode(value), type=Pod)


def test_containers_come_in_the_order_of_admission_with_their_kinds() -> None:
    """Init containers first; one that restarts always is a sidecar; indices count each list."""
    pod = parsed(
        spec={
            "nodeName": "n1",
            "initContainers": [
                {"name": "i", "resources": {"limits": {MEM: "3"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"limits": {MEM: "1"}}},
            ],
            "containers": [
                {"name": "a", "resources": {"limits": {MEM: "2", CORE: "30", "cpu": "1500m"}}},
                {"name": "b", "resources": {}},
            ],
        }
    )

    request = pod_request(pod)

    assert [
        (c.name, c.kind, c.index, c.amount(MEM), c.amount(CORE)) for c in request.containers
    ] == [
        ("i", ContainerKind.INIT, 0, 3, 0),
        ("s", ContainerKind.SIDECAR, 1, 1, 0),
        ("a", ContainerKind.APP, 0, 2, 30),
        ("b", ContainerKind.APP, 1, 0, 0),
    ]
    assert request.ref == PodRef("ns", "p", "u1")


@pytest.mark.parametrize(
    ("name", "asked"),
    [("nvidia.com/gpu", devices_asked), ("koordinator.sh/gpu-core", koordinator_amounts)],
)
def test_what_an_init_container_asks_is_asked_beside_sidecars_before_the_others(
    name: str, asked: Callable[[Pod], Mapping[str, int]]
) -> None:
    """A pod needs the most that it has at a time; none of a resource is nothing asked."""

    def container(amount: int, **more: str) -> dict[str, Any]:
        return {"name": f"c{amount}", "resources": {"limits": {name: str(amount)}}, **more}

    first = [container(1, restartPolicy="Always"), container(4)]
    assert asked(parsed(spec={"initContainers": first, "containers": [container(2)]})) == {name: 5}
    first = [container(3, restartPolicy="Always"), container(4)]
    assert asked(parsed(spec={"initContainers": first, "containers": [container(2)]})) == {name: 7}
    assert asked(parsed(spec={"containers": [container(0)]})) == {}


def claim_of(name: str) -> dict[str, str]:
    """An entry of `resourceClaims`."""
    return {"name": name, "resourceClaimTemplateName": "gpu-slice"}


def test_a_rewritten_pod_asks_what_its_claims_are_named_after() -> None:
    """Each claim counts once; nobody takes over what an init container's own claim holds."""
    shared = {"claims": [{"name": "slice-2-30-c0"}]}
    pod = parsed(
        spec={
            "resourceClaims": [
                claim_of("slice-2-30-c0"),
                claim_of("slice-3-30-i1"),
                claim_of("slice-9-0-c1-beside"),
                claim_of("disk"),
            ],
            "initContainers": [
                {"name": "shares", "resources": shared},
                {"name": "own", "resources": {"claims": [{"name": "slice-3-30-i1"}]}},
            ],
            "containers": [{"name": "a", "resources": shared}, {"name": "b"}],
        }
    )

    request = whole_request(pod)

    assert [(c.name, c.kind, c.amount(MEM), c.amount(CORE)) for c in request.containers] == [
        ("shares", ContainerKind.INIT, 0, 0),
        ("own", ContainerKind.SIDECAR, 3, 30),
        ("a", ContainerKind.APP, 2, 30),
        ("b", ContainerKind.APP, 0, 0),
    ]
    assert request.allocation_api is AllocationApi.DRA
    # To the agent's device plugin it is no caller, and to the controller nobody: it holds no units.
    assert not pod_request(pod).asks
    assert not scheduled_request(pod).asks


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([{"name": "CGPU_DISABLE", "value": "true"}], True),
        ([{"name": "CGPU_DISABLE", "value": "1"}], True),
        ([{"name": "CGPU_DISABLE", "value": "false"}], False),
        ([{"name": "CGPU_DISABLE", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}], False),
        ([{"name": "CGPU_DISABLE", "value": "1"}, {"name": "CGPU_DISABLE", "value": "0"}], False),
        (None, False),
    ],
)
def test_only_a_literal_of_its_own_env_asks_for_no_isolation(env: object, expected: bool) -> None:  # noqa: FBT001
    """`valueFrom` cannot be read here and counts for nothing; the last entry wins (R-507)."""
    request = pod_request(parsed(spec={"containers": [{"name": "a", "env": env}]}))

    assert request.containers[0].wants_no_isolation is expected


def test_a_schedulers_wish_comes_along() -> None:
    """What makes a wish is the domain's to say; here it is only handed over."""
    annotations = {
        "scheduler.framework.gpushare.assigned": "false",
        "scheduler.framework.gpushare.allocation": '{"0":{"0":4,"3":4}}',
    }
    labels = {"aliyun.com/gpu-count": "2"}
    pod = parsed(
        metadata={"namespace": "ns", "name": "p", "annotations": annotations, "labels": labels},
        spec={"containers": [{"name": "a", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}]},
    )

    assert pod_request(pod).wish == ((0, (0, 3)),)


def test_a_pod_is_known_by_the_uid_that_the_api_server_gave_it() -> None:
    """Anybody can write the annotation of a static pod's mirror, with another pod's uid in it."""
    pod = parsed(
        metadata={
            "namespace": "ns",
            "name": "p",
            "uid": "api",
            "annotations": {"kubernetes.io/config.mirror": "hash"},
            "labels": {"aliyun.com/gpu-count": "2"},
        },
        status={"phase": "Failed"},
    )

    request = pod_request(pod)

    assert request.ref.uid == "api"
    assert request.card_count_label == "2"
    assert request.is_finished


def test_a_limit_that_is_no_quantity_is_named() -> None:
    """Pod text that nobody can count raises, with the container's name."""
    pod = parsed(spec={"containers": [{"name": "a", "resources": {"limits": {MEM: "many"}}}]})

    with pytest.raises(ClusterError, match="container a: 'many' is not a Kubernetes quantity"):
        pod_request(pod)


def test_the_owner_is_the_controller_that_made_the_pod() -> None:
    """Of several owners the one that makes a new pod for one that fails; a bare pod has none."""
    owners = [
        {"kind": "Queue", "name": "q", "uid": "u2"},
        {"kind": "ReplicaSet", "name": "web-5d9", "uid": "u3", "controller": True},
    ]
    metadata = {"namespace": "ns", "name": "p", "uid": "u1"}
    owned = parsed(metadata={**metadata, "ownerReferences": owners})
    assert pod_request(owned).owner == "ReplicaSet ns/web-5d9"
    assert pod_request(parsed()).owner == ""


def _needs(cpu: str, *, restarts: bool = False) -> dict[str, Any]:
    more = {"restartPolicy": "Always"} if restarts else {}
    return {"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "64"}}, **more}


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        ({"containers": [{"name": "a"}]}, 0),
        ({"containers": [_needs("1500m"), _needs("2")]}, 3500),
        ({"initContainers": [_needs("3")], "containers": [_needs("1"), _needs("1")]}, 3000),
        ({"initContainers": [_needs("1")], "containers": [_needs("1"), _needs("1")]}, 2000),
        ({"initContainers": [_needs("1", restarts=True)], "containers": [_needs("1")]}, 2000),
        (
            {
                "initContainers": [_needs("1", restarts=True), _needs("3"), _needs("2")],
                "containers": [_needs("1")],
            },
            4000,
        ),
        ({"containers": [_needs("1")], "overhead": {"cpu": "250m"}}, 1250),
        (
            {
                "containers": [_needs("1")],
                "resources": {"requests": {"cpu": "5"}},
                "overhead": {"cpu": "1"},
            },
            6000,
        ),
        ({"containers": [_needs("1")], "resources": {"requests": {"memory": "1Gi"}}}, 1000),
    ],
)
def test_processors_are_counted_as_kube_scheduler_counts_them(
    spec: dict[str, Any], milli: int
) -> None:
    assert scheduled_request(parsed(spec=spec)).cpu_milli == milli


def test_a_processor_that_is_no_quantity_is_an_error() -> None:
    with pytest.raises(ClusterError, match="container c: cpu: 'much' is not a Kubernetes quantity"):
        scheduled_request(parsed(spec={"containers": [_needs("much")]}))
