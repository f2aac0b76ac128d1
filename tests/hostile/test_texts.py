"""What a tenant writes costs a text, a log, an Event or `why` no more when it is long than when it is short."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import structlog
from tools.harness.api_server import running, working
from tools.harness.rig import Rig, command, running_rig, slice_of, until

from gpu_device_plugin import errors
from gpu_device_plugin.cli.main import configure_logs
from gpu_device_plugin.domain.grants.decision_log import Decision, DecisionLog
from gpu_device_plugin.domain.models.model_catalogue import Catalogue
from gpu_device_plugin.domain.models.pod_admission import Applicant, Denied, admit
from gpu_device_plugin.domain.node.modes import PLACEMENT_ANNOTATION
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError, GpuPluginError, RefusalError, clip, shorten
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.admission_review import deny_pod
from gpu_device_plugin.kubernetes.objects.events import EventNote, Events
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request
from gpu_device_plugin.kubernetes.objects.quantity import milli, whole_number
from gpu_device_plugin.settings.setting import LogFormat

MODEL, DRIVER = "alibabacloud.com/gpu-model-series", "alibabacloud.com/gpu-driver-version"
CLASS = "alibabacloud.com/compute-class"
KIB = 1024


def told_of(rig: Rig, name: str) -> list[Any]:
    """Events about a pod's annotation."""
    found = rig.events("UnknownPlacement")
    return [event for event in found if event["involvedObject"]["name"] == name]


async def test_a_long_annotation_costs_a_refusal_what_a_short_one_costs() -> None:
    """By counting bytes with the real agent: the pod's status, the Event, the log and `why`."""
    costs = []
    async with running_rig() as rig:
        for name, size in (("a", KIB), ("b", 250 * KIB)):
            before = rig.log.stat().st_size
            values = {PLACEMENT_ANNOTATION: f"{name}{'x' * size}"}
            refused = await rig.admit(name, slice_of(2, 30), annotations=values)
            assert f"annotation {PLACEMENT_ANNOTATION}={name}xxx" in refused.message
            assert refused.message.count("Known: binpack, spread, fgd") == 1
            await until(partial(told_of, rig, name), 10)
            (event,) = told_of(rig, name)
            why = (await command(rig, "why", f"default/{name}"))[1]
            lines = rig.log.read_text()[before:].splitlines()
            told = [line for line in lines if "UnknownPlacement" in line]
            costs.append(
                [*map(len, (refused.message, event["message"], why)), len(told), len("".join(told))]
            )

    short, long = costs
    assert all(abs(one - other) <= 16 for one, other in zip(short, long, strict=True)), costs
    assert max(long) <= 2 * KIB


def kinds(kind: type[GpuPluginError]) -> Iterator[type[GpuPluginError]]:
    """An error and all that are of it."""
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


@pytest.mark.parametrize("kind", list(kinds(GpuPluginError)), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600"])
def test_no_error_has_a_text_of_more_than_a_kibibyte(
    kind: type[GpuPluginError], letter: str
) -> None:
    """Anyone who raises it, and whatever stands in it."""
    reason = {"reason": "R"} if issubclass(kind, RefusalError) else {}
    for size in (KIB + 1, 1000 * KIB):
        text = str(kind(letter * size, **reason))
        assert KIB - 4 < len(text.encode()) <= KIB
        assert text.endswith("…")
    assert str(kind(letter * 200, **reason)) == letter * 200


def test_all_errors_are_of_one_tree() -> None:
    """Else one of them had no bound."""
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [each for each in found if each.__module__ == errors.__name__]
    assert set(kinds(GpuPluginError)) >= set(found)


def test_a_value_is_cut_and_a_terminal_obeys_none_of_it() -> None:
    """64 characters of a value, also where each of them is shown as an escape."""
    assert clip("spread") == "spread"
    assert {len(clip("x" * size)) for size in (65, 250 * KIB)} == {64}
    assert len(clip("\x1b" * 64)) == 64
    assert clip("a\x1b]52;c;\x07b\u202e") == r"a\x1b]52;c;\x07b\u202e"


@pytest.mark.parametrize("size", [KIB, 250 * KIB])
def test_what_is_kept_of_a_pod_does_not_grow_with_what_it_says(size: int) -> None:
    """Labels, annotations and owners; the API server bounds an owner by the size of the object only."""
    owner = {"kind": "K" * size, "name": "n" * size, "uid": "u", "controller": True}
    words = {
        "gpu-device-plugin/placement": "p" * size,
        "gpu-device-plugin/compute-policy": "c" * size,
    }
    labels = {"aliyun.com/gpu-count": "9" * size, "ack.gpushare.placement": "l" * size}
    meta = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels, "annotations": words}
    kept = pod_request(msgspec.convert({"metadata": {**meta, "ownerReferences": [owner]}}, Pod))

    said = [kept.placement, kept.compute_policy, kept.card_count_label, kept.card_label]
    assert [len(text or "") for text in said] == [64] * 4
    assert len(kept.owner) == 64 + len(" ns/") + 253


@pytest.mark.parametrize(
    ("labels", "selector"),
    [
        ({MODEL: "m"}, {}),
        ({DRIVER: "d"}, {}),
        ({MODEL: "m", CLASS: "c"}, {}),
        ({MODEL: "m"}, {MODEL: "n"}),
    ],
)
def test_the_webhook_repeats_64_characters_of_a_label(
    labels: dict[str, str], selector: dict[str, str]
) -> None:
    """It sees labels before the API server has checked their length."""
    answers = []
    for size in (KIB, 1000 * KIB):
        pod = Applicant(
            labels={key: value * size for key, value in labels.items()},
            node_selector={key: value * size for key, value in selector.items()},
        )
        found = admit(pod, (), Catalogue({}))
        assert isinstance(found, Denied)
        answers.append(found.text)
    assert answers[0] == answers[1]
    assert len(answers[0]) < KIB
    assert len(json.loads(deny_pod("u", "x" * 1000 * KIB))["response"]["status"]["message"]) <= KIB


@pytest.mark.parametrize("text", ["9" * (KIB + 1), "9" * 250 * KIB, "1." + "0" * 250 * KIB])
def test_a_long_number_is_not_read(text: str) -> None:
    """Reading one takes time that grows with the square of its length."""
    for read in (whole_number, milli):
        with pytest.raises(ClusterError) as raised:
            read(text)
        assert len(str(raised.value)) < 128


@contextmanager
def logged(log_format: LogFormat) -> Iterator[io.StringIO]:
    """What is logged, as the programs write it."""
    before, shown = structlog.get_config(), io.StringIO()
    usual, sys.stderr = sys.stderr, shown
    try:
        configure_logs("info", log_format)
        yield shown
    finally:
        sys.stderr = usual
        structlog.configure(**before)


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_line_of_the_log_does_not_grow_with_its_values(log_format: LogFormat) -> None:
    """Also where somebody logs a text that is no error's, or many names."""
    lengths = []
    for size in (10 * KIB, 1000 * KIB):
        with logged(log_format) as shown:
            log = structlog.get_logger("hostile")
            log.info("refused", text="x" * size, units=["u" * 10] * size, pair=("y" * size, 1))
        lengths.append(len(shown.getvalue()))
    assert abs(lengths[0] - lengths[1]) < 16
    assert lengths[1] < 5 * KIB


def test_a_tenant_with_many_owners_washes_away_no_decision_of_another_namespace() -> None:
    """An owner is what the pod says it is; the namespace is not."""
    log = DecisionLog(100)
    for number in range(3):
        asked = Decision("ns/web", "main", "2 units", (), "refused", "NoRoom", number, "Job ns/web")
        log.add(asked)
    for number in range(1000):
        pod, owner = f"evil/p{number}", f"Job ns/web{number} evil/o"
        log.add(Decision(pod, "main", "2 units", (), "refused", "NoRoom", 9 + number, owner))

    assert len(log.of_pod("ns/web")) == 3


async def test_a_tenant_with_many_owners_delays_and_loses_no_event_of_another_namespace() -> None:
    """The queue is bounded, and whose namespace fills it pays for it."""
    async with running() as (server, api):
        writer = Events(api, "n1")
        for number in range(3):
            writer.post(EventNote(PodRef("ns", "web"), "NoRoom", f"no room {number}"))
        for number in range(1000):
            about = PodRef("evil", f"p{number}")
            writer.post(EventNote(about, "NoRoom", "no room", owner=f"Job evil/o{number}"))
        async with working(writer.run):
            await until(lambda: len([p for p in server.objects if "/events/" in p]) >= 10, 20)
        written = [path for path in server.objects if "/events/" in path]

    assert len([path for path in written[:4] if path.startswith("/api/v1/namespaces/ns/")]) == 3


def test_a_text_is_cut_between_letters() -> None:
    """Nothing that no decoder takes is sent anywhere."""
    assert shorten("ü" * 600).encode().decode() == "ü" * 510 + "…"
