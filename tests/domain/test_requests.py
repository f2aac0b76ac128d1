"""The promise: what no card may ever give is refused with pod, container, node, rule and cure."""

from dataclasses import replace

import pytest
from tests.domain.words import APP, CORE, COUNT, INIT, MEM, SIDECAR, container, pod, terms

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.demands import demand, demand_from_size, demands
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.init_containers import demands_ahead
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import RequestError


def refusal(subject: PodRequest, mode: NodeMode) -> RequestError:
    """The error for the pod's last container."""
    with pytest.raises(RequestError) as caught:
        demand(subject, subject.containers[-1], terms(mode))
    return caught.value


@pytest.mark.parametrize("percent", range(106))
def test_a_percentage_is_a_multiple_of_five(percent: int) -> None:
    """R-102, R-103: {5, 10, ... 100}, everything else is refused."""
    subject = pod("a", container("main", 2, percent))
    if percent in range(5, 101, 5):
        assert demand(subject, subject.containers[0], terms()) == Demand(Units(2), percent)
    else:
        reason = refusal(subject, NodeMode.CORE_MEM).reason
        assert reason == ("BadPercentage" if percent else "MemoryOnly")


@pytest.mark.parametrize(
    ("mem", "core", "mode", "reason", "cure"),
    [
        (2, 0, NodeMode.CORE_MEM, "MemoryOnly", "nodeSelector ack.node.gpu.schedule: cgpu"),
        (2, 30, NodeMode.CGPU, "ComputeNotServed", "nodeSelector ack.node.gpu.schedule: core_mem"),
        (2, 30, NodeMode.SHARE, "ComputeNotServed", "nodeSelector ack.node.gpu.schedule: core_mem"),
        (0, 30, NodeMode.CORE_MEM, "ComputeWithoutMemory", "ask aliyun.com/gpu-mem as well"),
        (-4, 0, NodeMode.CGPU, "BadAmount", "ask for 1 or more"),
        (-4, 30, NodeMode.CORE_MEM, "BadAmount", "ask for 1 or more"),
        (2, 7, NodeMode.CORE_MEM, "BadPercentage", "ask for instance 5"),
        (2, 105, NodeMode.CORE_MEM, "BadPercentage", "ask for instance 100"),
        (2, 0, NodeMode.MIG, "WrongMode", "nodeSelector ack.node.gpu.schedule: cgpu"),
        (2, 5, NodeMode.DISABLED, "WrongMode", "nodeSelector ack.node.gpu.schedule: core_mem"),
    ],
)
def test_a_wrong_request_is_told_with_its_cure(
    mem: int, core: int, mode: NodeMode, reason: str, cure: str
) -> None:
    """R-103, R-104, R-525, R-526."""
    error = refusal(pod("a", container("main", mem, core)), mode)

    assert error.reason == reason
    assert cure in str(error)
    assert f"pod default/a, container main, on node node-a (mode {mode})" in str(error)


def test_the_refusal_tells_amounts_with_their_units() -> None:
    """A reader of `kubectl describe` sees what a unit is."""
    text = str(refusal(pod("a", container("main", 2, 7)), NodeMode.CORE_MEM))

    assert "aliyun.com/gpu-mem: 2 (units of 1024 MiB)" in text
    assert "aliyun.com/gpu-core.percentage: 7 (percent of one card)" in text


@pytest.mark.parametrize("mode", [NodeMode.CORE_MEM, NodeMode.CGPU, NodeMode.SHARE])
def test_gpu_count_as_a_resource_is_refused_with_a_hint_at_the_label(mode: NodeMode) -> None:
    """It is counted on nodes, but only the label spreads a request over cards."""
    error = refusal(
        pod("a", ContainerRequest("main", APP, 0, {Resource.MEM: 2, Resource.COUNT: 1})), mode
    )

    assert error.reason == "CountRequested"
    assert 'label aliyun.com/gpu-count: "M"' in str(error)


@pytest.mark.parametrize("mode", [NodeMode.CGPU, NodeMode.SHARE])
@pytest.mark.parametrize(
    ("label", "units", "expected"),
    [
        ("4", 8, Demand(Units(8), cards=4)),
        ("2", 8, Demand(Units(8), cards=2)),
        ("1", 8, Demand(Units(8))),
        ("0", 8, Demand(Units(8))),
        (None, 8, Demand(Units(8))),
    ],
)
def test_the_label_spreads_units_evenly(
    mode: NodeMode, label: str | None, units: int, expected: Demand
) -> None:
    """R-520, R-521, R-522: N/M on each of M cards; 0 or no label is one card."""
    subject = pod("a", container("main", units), label=label)

    assert demand(subject, subject.containers[0], terms(mode)) == expected


@pytest.mark.parametrize(
    ("label", "units", "text"),
    [
        ("4", 9, "invalid replica for resource aliyun.com/gpu-mem,because 9 / 4 = 2.2"),
        ("3", 2, "invalid replica for resource aliyun.com/gpu-mem,because 2 / 3 = 0.7"),
        ("-1", 8, "request device count must be large than 0"),
        ("two", 8, "failed to parse request device count from pod label aliyun.com/gpu-count"),
        ("", 8, "failed to parse request device count from pod label aliyun.com/gpu-count"),
        ("1.5", 8, "failed to parse request device count from pod label aliyun.com/gpu-count"),
        ("٣", 9, "failed to parse request device count from pod label aliyun.com/gpu-count"),
    ],
)
def test_a_wrong_label_is_refused_in_the_documented_words(
    label: str, units: int, text: str
) -> None:
    """R-522."""
    assert text in str(refusal(pod("a", container("main", units), label=label), NodeMode.CGPU))


def test_the_label_does_not_go_with_divided_compute() -> None:
    """R-521."""
    error = refusal(pod("a", container("main", 8, 30), label="2"), NodeMode.CORE_MEM)

    assert error.reason == "SeveralCardsOfCompute"


def test_a_faulty_container_refuses_the_pod_at_its_first_call() -> None:
    """Init containers and later containers are checked before anything is granted."""
    faulty = container("later", 2, 7)
    subject = pod("a", container("setup", 2, 5, INIT), container("main", 2, 5), faulty)

    for asking in subject.containers:
        with pytest.raises(RequestError, match="container later"):
            demand(subject, asking, terms())


def test_containers_that_ask_nothing_are_no_fault() -> None:
    """A core_mem node also runs the pod's ordinary containers."""
    subject = pod("a", container("proxy"), container("main", 2, 5))

    assert demand(subject, subject.containers[1], terms()) == Demand(Units(2), 5)


@pytest.mark.parametrize(
    ("resource", "size", "mode", "expected"),
    [
        (MEM, 2, NodeMode.CORE_MEM, Demand(Units(2))),
        (CORE, 30, NodeMode.CORE_MEM, Demand(Units(0), 30)),
        (MEM, 2, NodeMode.SHARE, Demand(Units(2))),
    ],
)
def test_a_size_alone_is_a_demand(
    resource: Resource, size: int, mode: NodeMode, expected: Demand
) -> None:
    """With the API server away a call is answered from what it carries."""
    assert demand_from_size(PodRef("default", "a"), resource, size, terms(mode)) == expected


@pytest.mark.parametrize(
    ("resource", "size", "mode", "reason"),
    [
        (CORE, 7, NodeMode.CORE_MEM, "BadPercentage"),
        (CORE, 30, NodeMode.CGPU, "WrongMode"),
        (COUNT, 1, NodeMode.CGPU, "CountRequested"),
        (MEM, 1, NodeMode.DISABLED, "WrongMode"),
    ],
)
def test_a_size_that_is_never_valid_is_refused_without_any_text(
    resource: Resource, size: int, mode: NodeMode, reason: str
) -> None:
    """The rules that a number alone decides hold without the API server too."""
    with pytest.raises(RequestError) as caught:
        demand_from_size(PodRef("default", "a"), resource, size, terms(mode))

    assert caught.value.reason == reason
    assert str(caught.value).startswith("pod default/a on node node-a ")


def test_small_units_are_told_as_such() -> None:
    """R-409: the configured unit is what is printed."""
    small = replace(terms(NodeMode.SHARE), unit=MemoryUnit.MIB128)
    subject = pod("a", container("main", 9), label="2")

    with pytest.raises(RequestError, match=r"gpu-mem: 9 \(units of 128 MiB\)"):
        demand(subject, subject.containers[0], small)


@pytest.mark.parametrize(
    ("containers", "ahead"),
    [
        ([container("main", 2, 30), container("two", 9, 10)], (2, 30)),
        ([container("prepare", 1, 5, INIT), container("main", 5, 25)], (5, 25)),
        ([container("prepare", 6, 5, INIT), container("main", 2, 25)], (6, 25)),
        ([container("prepare", 4, 5, INIT), container("a", 2, 25), container("b", 3, 10)], (5, 35)),
        ([container("prepare", 1, 5, INIT), container("a", 2, 25), container("b", 3, 10)], (2, 25)),
        ([container("p", 1, 5, INIT), container("q", 2, 5, INIT), container("a", 5, 5)], (5, 5)),
        ([container("p", 2, 5, INIT), container("s", 3, 5, SIDECAR), container("a", 5, 5)], (3, 5)),
    ],
)
def test_an_init_container_needs_a_card_for_those_that_reuse_its_units(
    containers: list[ContainerRequest], ahead: tuple[int, int]
) -> None:
    """Memory units and percent of its card, until nothing of it is left to reuse."""
    subject = pod("a", *containers)

    found = demands_ahead(demands(subject, terms()))[0]

    assert found is not None
    assert found.amounts == ahead
