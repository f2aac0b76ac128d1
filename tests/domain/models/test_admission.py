"""The promise: a pod that asks for a model and a driver goes only to nodes that have both."""

from collections.abc import Mapping

import pytest

from gpu_device_plugin.domain.models.label_selector import LabelSelector
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, Catalogue, Series
from gpu_device_plugin.domain.models.pod_admission import (
    CLASS_LABEL,
    DRIVER_LABEL,
    Admitted,
    Applicant,
    Denied,
    admit,
)
from gpu_device_plugin.domain.models.profile_rules import ProfileRule

T4 = Series("T4", ("Tesla T4",), ("535.161.08", "570.133.20", "525.105.17"), "535.161.08")
P16EN = Series("P16EN", (), ("1.4.1", "1.5.0", "1.5.1"), "1.4.1")
OWN = Series("OWN", ("NVIDIA Own",))
CATALOGUE = Catalogue({each.name: each for each in (T4, P16EN, OWN)})
CLOSED = Catalogue({each.name: each for each in (T4, P16EN)})
HPN = ProfileRule(
    "gpu-hpn-driver", pods=LabelSelector({CLASS_LABEL: "gpu-hpn"}), labels={DRIVER_LABEL: "1.5.0"}
)


def asked(
    compute_class: str = "", model: str = "", driver: str = "", selector: str = ""
) -> Applicant:
    """A pod with these labels, and a node selector for a model."""
    labels = {CLASS_LABEL: compute_class, MODEL_LABEL: model, DRIVER_LABEL: driver}
    return Applicant(
        labels={key: value for key, value in labels.items() if value},
        node_selector={MODEL_LABEL: selector} if selector else {},
    )


def affinity(**values: str) -> Mapping[str, object]:
    """A node affinity that requires these values, as Kubernetes writes it."""
    keys = {"driver": DRIVER_LABEL, "model": MODEL_LABEL}
    expressions = [
        {"key": keys[name], "operator": "In", "values": [value]}
        for name, value in sorted(values.items())
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def admitted(pod: Applicant, *rules: ProfileRule, by: Catalogue = CATALOGUE) -> Admitted:
    found = admit(pod, rules, by)
    assert isinstance(found, Admitted), found
    return found


def denied(pod: Applicant, *rules: ProfileRule, by: Catalogue = CATALOGUE) -> str:
    found = admit(pod, rules, by)
    assert isinstance(found, Denied), found
    return found.text


def test_the_sources_pod_goes_to_a_node_with_its_model_and_driver() -> None:
    """R-001, R-002, R-006: labels alone are enough."""
    found = admitted(asked("gpu", "T4", "535.161.08"))

    assert found == Admitted(affinity=affinity(model="T4", driver="535.161.08"))


@pytest.mark.parametrize(
    ("pod", "driver"),
    [
        (asked("gpu", "T4"), "535.161.08"),
        (asked("", "T4"), "535.161.08"),
        (asked("gpu-hpn", selector="P16EN"), "1.4.1"),
    ],
)
def test_without_a_driver_the_default_of_the_model_is_filled_in(
    pod: Applicant, driver: str
) -> None:
    """R-001, R-008, also without a class, and for a model by nodeSelector (R-003)."""
    found = admitted(pod)

    assert found.labels == {DRIVER_LABEL: driver}
    assert found.affinity is not None
    assert driver in str(found.affinity)


def test_a_series_without_a_default_leaves_the_driver_to_the_node() -> None:
    """Only the model is required."""
    assert admitted(asked("gpu", "OWN")) == Admitted(affinity=affinity(model="OWN"))


def test_a_driver_is_the_pods_own_then_the_profiles_then_the_default() -> None:
    """R-617."""
    own = admitted(asked("gpu-hpn", driver="1.5.1", selector="P16EN"), HPN)
    profile = admitted(asked("gpu-hpn", selector="P16EN"), HPN)
    default = admitted(asked("gpu", "P16EN"), HPN)

    assert (own.labels, own.affinity) == ({}, affinity(model="P16EN", driver="1.5.1"))
    assert profile.labels == {DRIVER_LABEL: "1.5.0"}
    assert default.labels == {DRIVER_LABEL: "1.4.1"}


@pytest.mark.parametrize(
    ("pod", "rules", "text"),
    [
        (
            asked("gpu", "T4", "999"),
            (),
            "alibabacloud.com/gpu-driver-version '999' is not served for T4. "
            "Served: 525.105.17, 535.161.08, 570.133.20",
        ),
        (
            asked("gpu-hpn", selector="T4"),
            (HPN,),
            "alibabacloud.com/gpu-driver-version '1.5.0' (by the profile's rule 'gpu-hpn-driver') "
            "is not served for T4. Served: 525.105.17, 535.161.08, 570.133.20",
        ),
        (
            asked("gpu", "T5"),
            (),
            "alibabacloud.com/gpu-model-series 'T5' is not in the catalogue. Known: P16EN, T4",
        ),
        (
            asked("gpu"),
            (),
            "alibabacloud.com/compute-class 'gpu' needs a model: set the label "
            "alibabacloud.com/gpu-model-series. Known: P16EN, T4",
        ),
        (
            asked(driver="999"),
            (),
            "alibabacloud.com/gpu-driver-version '999' is not served for any series. "
            "Served: 1.4.1, 1.5.0, 1.5.1, 525.105.17, 535.161.08, 570.133.20",
        ),
        (
            asked("gpu", "T4", selector="P16EN"),
            (),
            "label alibabacloud.com/gpu-model-series says 'T4', the pod's node selector or "
            "affinity 'P16EN': no node has both",
        ),
        (
            asked("gpuu", "T4"),
            (),
            "alibabacloud.com/compute-class 'gpuu' is no class that a model or driver can be "
            "asked for with. Known: gpu, gpu-hpn, general-purpose, performance",
        ),
        (
            Applicant(labels={MODEL_LABEL: "T4", DRIVER_LABEL: ""}),
            (),
            "alibabacloud.com/gpu-driver-version '' is empty: leave the label out for the default",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_can(
    pod: Applicant, rules: tuple[ProfileRule, ...], text: str
) -> None:
    """R-001, R-002, R-007: at the allocation API, not as a pod that waits for ever."""
    assert denied(pod, *rules, by=CLOSED) == text


@pytest.mark.parametrize(
    "pod",
    [
        asked("general-purpose"),
        asked("performance", "T4", "999"),
        asked("gpu-hpn"),
        asked("another-platform"),
        Applicant(),
        Applicant(node_selector={MODEL_LABEL: "T4"}, labels={CLASS_LABEL: "performance"}),
    ],
)
def test_who_asks_for_no_model_and_driver_passes_untouched(pod: Applicant) -> None:
    """R-601: other classes too."""
    assert admitted(pod) == Admitted()


def test_class_gpu_goes_without_a_model_where_the_operator_says_so() -> None:
    """R-002 switched off; a model by node selector is one in any case."""
    assert admit(asked("gpu"), (), CATALOGUE, needs_model=False) == Admitted()
    assert admitted(asked("gpu", selector="T4")).labels == {DRIVER_LABEL: "535.161.08"}


def test_a_driver_with_open_kernel_modules_is_one_of_its_version() -> None:
    """R-603: NVML says 580.95.05 of 580.95.05-open; asked again nothing changes."""
    catalogue = Catalogue({"N": Series("N", (), ("580.95.05-open",), "580.95.05-open")})
    first = admitted(asked("gpu", "N"), by=catalogue)

    assert "['580.95.05-open', '580.95.05']" in str(first.affinity)
    again = Applicant(
        {CLASS_LABEL: "gpu", MODEL_LABEL: "N", **first.labels}, affinity=first.affinity
    )
    assert admitted(again, by=catalogue) == Admitted()
    by_node = Applicant(again.labels, node_selector={DRIVER_LABEL: "580.95.05"})
    assert admitted(by_node, by=catalogue).affinity == first.affinity


def test_alternatives_of_a_pods_own_affinity_each_get_the_requirement() -> None:
    """In one alone it could be passed by; an empty term matches nothing and must stay so."""
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    before = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "preferred": [2],
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [name]}, {}]
            },
        },
    }
    model = {"key": MODEL_LABEL, "operator": "In", "values": ["OWN"]}

    found = admitted(Applicant(labels={MODEL_LABEL: "OWN"}, affinity=before))

    assert found.affinity == {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "preferred": [2],
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [zone, model]},
                    {"matchExpressions": [model], "matchFields": [name]},
                    {},
                ]
            },
        },
    }


def test_a_second_admission_changes_nothing() -> None:
    """The API server may ask again after other webhooks."""
    first = admitted(asked("gpu", "T4"))
    again = Applicant(
        labels={CLASS_LABEL: "gpu", MODEL_LABEL: "T4", **first.labels}, affinity=first.affinity
    )

    assert admitted(again) == Admitted()


def test_a_model_by_node_affinity_decides_the_drivers() -> None:
    """R-003, where every alternative names the same model."""
    pod = Applicant(labels={CLASS_LABEL: "gpu-hpn"}, affinity=affinity(model="P16EN"))
    wrong = Applicant(
        labels={CLASS_LABEL: "gpu-hpn", DRIVER_LABEL: "535.161.08"},
        affinity=affinity(model="P16EN"),
    )

    assert admitted(pod).labels == {DRIVER_LABEL: "1.4.1"}
    assert "is not served for P16EN" in denied(wrong)


@pytest.mark.parametrize(
    "broken",
    [
        {"nodeAffinity": []},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": 7}},
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [3, {}]}
            }
        },
    ],
)
def test_a_nonsense_affinity_is_no_crash(broken: Mapping[str, object]) -> None:
    """The API server judges it."""
    assert isinstance(
        admit(Applicant(labels={MODEL_LABEL: "T4"}, affinity=broken), (), CATALOGUE), Admitted
    )


def one_of(key: str, *values: str, operator: str = "In") -> Mapping[str, object]:
    """A node affinity of one expression."""
    expression = {"key": key, "operator": operator, "values": [*values]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    "asking",
    [
        Applicant(labels={MODEL_LABEL: "T4"}, node_selector={DRIVER_LABEL: "570.133.20"}),
        Applicant(labels={MODEL_LABEL: "T4"}, affinity=one_of(DRIVER_LABEL, "570.133.20")),
        Applicant(labels={MODEL_LABEL: "T4"}, affinity=one_of(DRIVER_LABEL, "570.133.20", "1")),
        Applicant(
            labels={MODEL_LABEL: "T4"},
            affinity=one_of(DRIVER_LABEL, "535.161.08", operator="NotIn"),
        ),
        Applicant(
            labels={CLASS_LABEL: "gpu-hpn", MODEL_LABEL: "P16EN"},
            node_selector={DRIVER_LABEL: "1.5.1"},
        ),
    ],
)
def test_a_driver_that_a_pod_asks_of_its_nodes_is_respected(asking: Applicant) -> None:
    """Neither a default nor a profile's driver is put beside it: no node would have both."""
    found = admitted(asking, HPN)

    assert DRIVER_LABEL not in found.labels
    assert str(found.affinity).count(DRIVER_LABEL) == str(asking.affinity).count(DRIVER_LABEL)
    assert MODEL_LABEL in str(found.affinity)


def test_a_default_that_the_pods_own_affinity_allows_is_filled_in() -> None:
    """One of those that it names."""
    asking = Applicant(
        labels={MODEL_LABEL: "T4"}, affinity=one_of(DRIVER_LABEL, "570.133.20", "535.161.08")
    )
    assert admitted(asking).labels == {DRIVER_LABEL: "535.161.08"}


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        (
            Applicant(
                labels={MODEL_LABEL: "T4", DRIVER_LABEL: "535.161.08"},
                node_selector={DRIVER_LABEL: "570.133.20"},
            ),
            "label alibabacloud.com/gpu-driver-version says '535.161.08', the pod's node selector "
            "or affinity '570.133.20': no node has both",
        ),
        (
            Applicant(labels={MODEL_LABEL: "T4"}, affinity=one_of(MODEL_LABEL, "OWN", "P16EN")),
            "label alibabacloud.com/gpu-model-series says 'T4', the pod's node selector or "
            "affinity other values: no node has both",
        ),
        (
            Applicant(
                labels={MODEL_LABEL: "T4", DRIVER_LABEL: "535.161.08"},
                affinity=one_of(DRIVER_LABEL, "535.161.08", operator="NotIn"),
            ),
            "label alibabacloud.com/gpu-driver-version says '535.161.08', the pod's node selector "
            "or affinity other values: no node has both",
        ),
        (
            Applicant(
                labels={MODEL_LABEL: "T4"},
                node_selector={DRIVER_LABEL: "570.133.20"},
                affinity=one_of(DRIVER_LABEL, "535.161.08"),
            ),
            "the pod's node selector says alibabacloud.com/gpu-driver-version '570.133.20', the "
            "pod's node affinity other values: no node has both",
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_sides(asking: Applicant, text: str) -> None:
    """Else the pod would wait for ever."""
    assert denied(asking) == text
