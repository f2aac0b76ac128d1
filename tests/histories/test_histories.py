"""The promise: whatever happens to a node, and in whatever order, what the model says stays true.

Histories that once failed stand here by name, as short as they could be made. `make histories` plays
thousands of new ones.
"""

import os
import shutil
from collections.abc import Sequence

import pytest
from tests.histories import refusals
from tests.histories import steps as actions
from tests.histories.driver_limits import DriverLimits
from tests.histories.history import Outcome, play, shortened
from tests.histories.making import made
from tests.histories.node import Node
from tests.histories.steps import Step

_ONE_POD = (
    Step("create", 20.0, {"pod": 1, "shape": "plain"}),
    Step("restart_container", 5.0, {"pod": 1, "container": 0}),
    Step("delete", 1.0, {"pod": 1}),
)


def test_a_pod_comes_runs_and_goes() -> None:
    """The thinnest history: admitted, granted, started twice, deleted, reconciled."""
    outcome = play(_ONE_POD)
    story = "\n".join(outcome.story)

    assert outcome.violation == ""
    assert story.count("p1/main runs") == 2
    assert "slice ended" in story


def test_limits_of_the_driver_are_kept_and_the_seconds_without_them_counted() -> None:
    """Lost, and by a reload; a runtime that ignores CDI; by NVIDIA's hook; one that fails at first."""
    outcome = play(
        (
            Step("limits_begin", 8.0),
            Step("create", 8.0, {"pod": 1, "shape": "several"}),
            Step("limits_lost", 40.0),
            Step("driver_reloads", 70.0, {"seconds": 10.0}),
            Step("new_settings", 20.0, {"driver_limit_by": "toolkit"}),
            Step("create", 20.0, {"pod": 2, "shape": "half"}),
            Step("hooks_fail", 0.0, {"times": 2}),
            Step("restart_container", 20.0, {"pod": 1, "container": 1}),
            Step("cdi_off", 0.0, {"seconds": 20.0}),
            Step("restart_container", 40.0, {"pod": 2, "container": 0}),
            Step("new_settings", 20.0, {"memory_enforcer": "library"}),
        )
    )
    story = "\n".join(outcome.story)

    assert outcome.violation == ""
    assert story.count("limit set again") == 2 + 2 + 1
    assert "does not start: createRuntime hook" in story
    assert 0 < outcome.uncapped_seconds < 150


def test_a_seed_tells_one_story_to_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails can be played again: a second later, by another pid, in a pod of another name."""

    def told() -> list[Outcome]:
        return [play(made(seed), seed) for seed in (2, 140, 181)]

    before = told()
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setenv("POD_NAME", "another")

    assert told() == before


_FOUND: dict[str, tuple[int, tuple[Step, ...]]] = {
    "an agent is killed while the disk is full": (
        0,
        (Step("kill_agent", 0.0, {"steps": 0}), Step("disk_full", 20.0, {"seconds": 20.0})),
    ),
    "an agent is killed when a write has failed and nobody has looked": (
        6443,
        (
            Step("recover", 40.0, {"card": 0}),
            Step("driver_reloads", 20.0, {"seconds": 30.0}),
            Step("create", 8.0, {"pod": 0, "shape": "whole"}),
            Step("disk_full", 40.0, {"seconds": 70.0}),
            Step("release_after", 20.0),
            Step("kill_agent", 0.02, {"steps": 97}),
            Step("card_asks_for_reset", 8.0, {"card": 1, "seconds": 2.0}),
        ),
    ),
    "an agent starts while a disk that was slow still flushes": (
        7552,
        (
            Step("card_unplugged", 0.0, {"card": 1, "seconds": 8.0}),
            Step("api_behind", 0.0, {"seconds": 20.0, "lag": 5.0}),
            Step("card_asks_for_reset", 0.2, {"card": 1, "seconds": 2.0}),
            Step("sockets_wiped", 1.0),
            Step("create", 0.0, {"pod": 0, "shape": "two cards"}),
            Step("create", 40.0, {"pod": 5, "shape": "sidecar"}),
            Step("create", 40.0, {"pod": 3, "shape": "nothing"}),
            Step("disk_slow", 1.0, {"seconds": 2.0, "flush": 30.0}),
            Step("state_damaged", 0.2, {"kind": "cards", "at": 0.252}),
            Step("replace", 1.0, {"pod": 4, "shape": "small"}),
        ),
    ),
    "a pod with an init container comes while the API server is away": (
        0,
        (
            Step("api_away", 0.02, {"seconds": 70.0}),
            Step("create", 8.0, {"pod": 4, "shape": "init"}),
        ),
    ),
    "the last write is lost of a container that took over from an init container": (
        0,
        (
            Step("create", 20.0, {"pod": 5, "shape": "smaller init"}),
            Step("state_damaged", 40.0, {"kind": "grants", "at": 0.3}),
        ),
    ),
    "a container restarts after isolation was switched off for new ones": (
        0,
        (
            Step("create", 20.0, {"pod": 0, "shape": "init"}),
            Step("new_settings", 1.0, {"isolation": "off"}),
            Step("restart_container", 20.0, {"pod": 0, "container": 0}),
        ),
    ),
    "a card goes to MIG mode and stays there": (
        0,
        (Step("card_to_mig", 60.0, {"card": 1, "seconds": 70.0}),),
    ),
    "NVML has asked for a reset before the agent starts": (
        0,
        (
            Step("reboot", 1.0, {"seconds": 20.0}),
            Step("card_asks_for_reset", 40.0, {"card": 1, "seconds": 70.0}),
        ),
    ),
    "a kubelet that has just started takes nothing back from pods that were deleted meanwhile": (
        605,
        (
            Step("create", 0.3, {"pod": 3, "shape": "plain"}),
            Step("create", 1.0, {"pod": 4, "shape": "sidecar"}),
            Step("create", 0.0, {"pod": 5, "shape": "small"}),
            Step("create", 0.3, {"pod": 6, "shape": "small"}),
            Step("region_grown", 40.0, {"pod": 6}),
            Step("restart_kubelet", 0.0, {"away": 1.6, "late": 4.07, "has_get": False}),
            Step("swap", 40.0, {"one": 6, "other": 3, "grace": 0.0, "by_force": True}),
        ),
    ),
    "a pod whose init container is known by its units alone asks for nothing more": (
        2735,
        (
            Step("create", 0.3, {"pod": 2, "shape": "alone"}),
            Step("api_compacts", 0.0),
            Step("replace", 20.0, {"pod": 0, "shape": "alone, init", "is_new_name": True}),
            Step("replace", 40.0, {"pod": 2, "shape": "alone, init", "is_new_name": False}),
        ),
    ),
    "a card was cut, and the node has booted since: its pod was rejected a minute ago": (
        1894,
        (
            Step("nvidia", 2.0),
            Step("create", 0.0, {"pod": 5, "shape": "static"}),
            Step("card_cut", 20.0, {"card": 0, "instances": 3}),
            Step("reboot", 0.2, {"seconds": 20.0}),
        ),
    ),
    "all cards have gone to MIG mode, and their pods have ended": (
        0,
        (
            Step("create", 8.0, {"pod": 1, "shape": "small"}),
            Step("card_cut", 0.0, {"card": 0, "instances": 3}),
            Step("card_cut", 20.0, {"card": 1, "instances": 3}),
            Step("reboot", 60.0, {"seconds": 20.0}),
            Step("quiet"),
        ),
    ),
    "a kubelet has lost its checkpoint, and a second container starts that asks what a running pod holds": (
        0,
        (
            Step("create", 3.0, {"pod": 1, "shape": "quarter"}),
            Step("create", 0.5, {"pod": 4, "shape": "sidecar"}),
            Step("restart_kubelet", 0.0, {"away": 3.75, "late": 7.62, "forgets": True}),
        ),
    ),
    "a kubelet has lost its checkpoint, and another pod that asks the same starts": (
        961,
        (
            Step("create", 40.0, {"pod": 4, "shape": "bigger init"}),
            Step("restart_kubelet", 0.0, {"away": 3.8, "late": 8.78, "forgets": True}),
            Step("create", 3.0, {"pod": 5, "shape": "bigger init"}),
        ),
    ),
    "a kubelet has lost its checkpoint, and a third pod wants one of two whole cards": (
        1,
        (
            Step("nvidia", 8.0),
            Step("label", 8.0, {"mode": "default"}),
            Step("create", 0.2, {"pod": 0, "shape": "card"}),
            Step("create", 20.0, {"pod": 1, "shape": "card"}),
            Step("restart_kubelet", 40.0, {"away": 1.0, "late": 1.0, "forgets": True}),
            Step("create", 20.0, {"pod": 2, "shape": "card"}),
        ),
    ),
    "units of a pod that is gone were given again, and that write is lost": (
        2014,
        (
            Step("api_away", 20.0, {"seconds": 70.0}),
            Step("create", 1.0, {"pod": 0, "shape": "several"}),
            Step("api_slow", 20.0, {"seconds": 20.0, "latency": 3.0}),
            Step("label", 8.0, {"mode": "share"}),
            Step("create", 0.0, {"pod": 1, "shape": "memory"}),
            Step("replace", 1.0, {"pod": 0, "shape": "bigger init"}),
            Step("state_damaged", 1.0, {"kind": "grants", "at": 0.067}),
        ),
    ),
    "an agent is stopped while a container is admitted": (
        2379,
        (
            Step("create", 0.02, {"pod": 5, "shape": "whole"}),
            Step("new_settings", 40.0, {"placement": "spread"}),
        ),
    ),
    "a pod for two cards comes while nobody can read its label": (
        2436,
        (
            Step("label", 3.0, {"mode": "share"}),
            Step("api_away", 0.02, {"seconds": 70.0}),
            Step("create", 20.0, {"pod": 5, "shape": "two cards"}),
        ),
    ),
    "an init container fits a card that its pod does not fit": (
        5962,
        (
            Step("replace", 0.02, {"pod": 1, "shape": "init"}),
            Step("create", 0.2, {"pod": 4, "shape": "init"}),
            Step("create", 40.0, {"pod": 5, "shape": "smaller init"}),
            Step("create", 20.0, {"pod": 0, "shape": "smaller init"}),
        ),
    ),
    "the record of the node's mode is damaged, and the label names another one": (
        7138,
        (
            Step("create", 0.2, {"pod": 0, "shape": "half"}),
            Step("label", 0.0, {"mode": "share"}),
            Step("state_damaged", 8.0, {"kind": "node", "at": 0.576}),
        ),
    ),
    "grants and the kubelet's checkpoint are lost at once": (
        7398,
        (
            Step("kill_agent", 20.0, {"steps": 0}),
            Step("create", 0.2, {"pod": 0, "shape": "bigger init"}),
            Step("disk_full", 3.0, {"seconds": 70.0}),
            Step("restart_kubelet", 8.0, {"away": 3.49, "late": 5.6, "forgets": True}),
            Step("release_after", 0.2),
            Step("state_damaged", 1.0, {"kind": "grants", "at": 0.409}),
            Step("restart_container", 3.0, {"pod": 0, "container": 0}),
        ),
    ),
    "the driver hangs soon after a card was lost": (
        22283,
        (
            Step("api_away", 8.0, {"seconds": 2.0}),
            Step("card_lost", 0.2, {"card": 0, "seconds": 8.0}),
            Step("driver_hangs", 0.0, {"seconds": 70.0}),
            Step("failpoint", 40.0, {"point": "library.before-remove"}),
        ),
    ),
    "a kubelet has lost its checkpoint and gives a container its two resources far apart": (
        22358,
        (
            Step("registration_refused", 8.0, {"times": 4}),
            Step("kill_agent", 20.0, {"steps": 19}),
            Step("replace", 40.0, {"pod": 5, "shape": "odd percentage"}),
            Step("sockets_wiped", 40.0),
            Step("replace", 0.2, {"pod": 3, "shape": "bigger init"}),
            Step(
                "restart_kubelet",
                20.0,
                {"away": 4.29, "late": 1.07, "forgets": True, "has_get": False},
            ),
            Step("create", 1.0, {"pod": 0, "shape": "two cards"}),
        ),
    ),
    "a pod is replaced whose other half was never asked for": (
        7877,
        (
            Step("create", 0.02, {"pod": 3, "shape": "plain"}),
            Step("create", 0.0, {"pod": 4, "shape": "half"}),
            Step("finish", 8.0, {"pod": 4, "phase": "Failed"}),
            Step("api_away", 0.2, {"seconds": 8.0}),
            Step("replace", 8.0, {"pod": 1, "shape": "compute only"}),
            Step("recover", 20.0, {"card": 1}),
            Step("replace", 20.0, {"pod": 1, "shape": "small"}),
        ),
    ),
    "the last write is lost of a container whose pod spec nobody had": (
        5141,
        (
            Step("create", 40.0, {"pod": 4, "shape": "several"}),
            Step("create", 0.02, {"pod": 1, "shape": "too big"}),
            Step("api_away", 8.0, {"seconds": 2.0}),
            Step("api_away", 8.0, {"seconds": 20.0}),
            Step("label", 1.0, {"mode": ""}),
            Step("create", 0.02, {"pod": 2, "shape": "smaller init"}),
            Step("list_not_taken", 0.02, {"times": 2}),
            Step("state_damaged", 0.02, {"kind": "grants", "at": 0.888}),
        ),
    ),
    "a pod comes back under its name with other containers while the watch is behind": (
        0,
        (
            Step("create", 20.0, {"pod": 1, "shape": "sidecar"}),
            Step("api_behind", 0.2, {"seconds": 20.0, "lag": 5.0}),
            Step("replace", 8.0, {"pod": 1, "shape": "several"}),
        ),
    ),
    "a card is given for one pod alone while another's second resource is still to be asked for": (
        334,
        (
            Step("create", 0.3, {"pod": 0, "shape": "small"}),
            Step("create", 0.0, {"pod": 1, "shape": "alone, init"}),
            Step("create", 0.0, {"pod": 3, "shape": "alone"}),
            Step("replace", 0.02, {"pod": 0, "shape": "plain", "grace": 0.0, "is_new_name": True}),
            Step(
                "replace",
                0.2,
                {"pod": 2, "shape": "alone, init", "grace": 30.0, "is_new_name": False},
            ),
            Step("disk_slow", 0.2, {"seconds": 2.0, "flush": 0.5}),
            Step("api_slow", 0.02, {"seconds": 8.0, "latency": 0.9}),
            Step("replace", 1.0, {"pod": 1, "shape": "small", "grace": 0.0, "is_new_name": False}),
            Step(
                "restart_kubelet",
                20.0,
                {"away": 3.21, "late": 11.48, "forgets": False, "has_get": True, "bound": "alone"},
            ),
        ),
    ),
    "two cards take long at once, so that none is a witness against the other": (
        2724,
        (
            Step("card_slow", 3.0, {"card": 1, "seconds": 150.0, "call": 45.0}),
            Step("card_slow", 0.2, {"card": 0, "seconds": 150.0, "call": 20.0}),
            Step("create", 40.0, {"pod": 7, "shape": "card each"}),
            Step("delete_by_force", 40.0, {"pod": 6, "seconds": 150.0}),
            Step("api_away", 40.0, {"seconds": 70.0}),
        ),
    ),
    "a card waits for a pod with an instance of before, while another one takes long": (
        4564,
        (
            Step("nvidia", 2.0),
            Step("card_cut", 1.0, {"card": 1, "instances": 3}),
            Step("create", 1.0, {"pod": 8, "shape": "instance"}),
            Step("card_cut", 40.0, {"card": 1, "instances": 0}),
            Step("create", 40.0, {"pod": 11, "shape": "static"}),
            Step(
                "replace", 20.0, {"pod": 9, "shape": "quarter", "grace": 0.0, "is_new_name": True}
            ),
            Step("card_slow", 40.0, {"card": 0, "seconds": 70.0, "call": 20.0}),
        ),
    ),
    "a pod is rejected after a reboot, and its grant keeps the mode for as long as List may be short": (
        0,
        (
            Step("create", 20.0, {"pod": 1, "shape": "plain"}),
            Step("card_cut", 0.2, {"card": 0, "instances": 2}),
            Step("card_cut", 20.0, {"card": 1, "instances": 2}),
            Step("label", 1.0, {"mode": "cgpu"}),
            Step("reboot", 8.0, {"seconds": 20.0}),
        ),
    ),
    "both cards are cut, so that the node has none to tell": (
        0,
        (
            Step("create", 20.0, {"pod": 1, "shape": "plain"}),
            Step("delete", 100.0, {"pod": 1}),
            Step("card_cut", 0.2, {"card": 0, "instances": 2}),
            Step("card_cut", 90.0, {"card": 1, "instances": 2}),
        ),
    ),
    "an agent starts when NVIDIA's file is bad": (
        0,
        (
            Step("nvidia", 2.0),
            Step("label", 1.0, {"mode": "default"}),
            Step("create", 10.0, {"pod": 9, "shape": "nothing"}),
            Step("configure", 30.0, {"name": "x2"}),
            Step("configure", 30.0, {"name": "bad"}),
            Step("stop_agent", 60.0),
        ),
    ),
    "a static pod asks for two containers": (
        0,
        (Step("create", 20.0, {"pod": 1, "shape": "static pair"}),),
    ),
    "a pod that was refused when its container started again goes on, and is alone on its card": (
        2,
        (
            Step("create", 5.0, {"pod": 2, "shape": "whole"}),
            Step("create", 70.0, {"pod": 1, "shape": "alone"}),
            Step("restart_kubelet", 40.0, {"away": 0.3, "late": 0.0, "forgets": True}),
            Step("disk_full", 0.1, {"seconds": 10.0}),
            Step("restart_container", 30.0, {"pod": 1, "container": 0}),
            Step("restart_kubelet", 30.0, {"away": 0.3, "late": 10.0, "bound": "small"}),
        ),
    ),
    "a card that has been failing for long leaves MIG mode while NVML is opened": (
        9250,
        (
            Step("nvidia", 2.0),
            Step("card_cut", 1.0, {"card": 1, "instances": 3}),
            Step("card_lost", 1.0, {"card": 1, "seconds": 70.0}),
            Step("replace", 40.0, {"pod": 11, "shape": "count", "grace": 2.0, "is_new_name": True}),
            Step("disk_slow", 40.0, {"seconds": 70.0, "flush": 30.0}),
            Step("card_cut", 40.0, {"card": 1, "instances": 0}),
        ),
    ),
    "a static pod is made again with the units that it had, and the kubelet has no Get": (
        9307,
        (
            Step("placement", 0.0, {"policy": "spread"}),
            Step("create", 0.0, {"pod": 0, "shape": "quarter"}),
            Step("create", 0.3, {"pod": 1, "shape": "quarter"}),
            Step("create", 0.3, {"pod": 2, "shape": "static"}),
            Step("create", 1.0, {"pod": 3, "shape": "static"}),
            Step("create", 0.3, {"pod": 4, "shape": "plain"}),
            Step(
                "restart_kubelet",
                1.0,
                {"away": 2.22, "late": 11.08, "forgets": False, "has_get": False, "bound": "alone"},
            ),
            Step("reboot", 40.0, {"seconds": 20.0}),
            Step("swap", 8.0, {"one": 2, "other": 0, "grace": 2.0, "by_force": True}),
        ),
    ),
    "the calls of a container are taken for those of two while the API server is away": (
        9063,
        (
            Step("api_away", 40.0, {"seconds": 70.0}),
            Step("create", 3.0, {"pod": 8, "shape": "init, sidecar"}),
        ),
    ),
    "a container with the units of its init container starts while the agent knows no pod spec": (
        3,
        (
            Step("create", 20.0, {"pod": 1, "shape": "small"}),
            Step("api_away", 1.0, {"seconds": 70.0}),
            Step("kill_agent", 8.0, {"steps": 0}),
            Step("create", 3.0, {"pod": 8, "shape": "init"}),
        ),
    ),
    "the last write is lost of a slice that was resized": (
        8218,
        (
            Step("create", 0.0, {"pod": 0, "shape": "static"}),
            Step("create", 0.0, {"pod": 1, "shape": "static"}),
            Step("create", 0.0, {"pod": 2, "shape": "quarter"}),
            Step("create", 1.0, {"pod": 3, "shape": "quarter"}),
            Step("create", 1.0, {"pod": 4, "shape": "quarter"}),
            Step("create", 0.3, {"pod": 5, "shape": "small"}),
            Step("resize", 8.0, {"pod": 4, "text": "NAME=mem:1,within:5s"}),
            Step("state_damaged", 8.0, {"kind": "grants", "at": 0.276}),
        ),
    ),
    "the call of a pod is taken for one that runs without units, where nothing is mounted": (
        7561,
        (
            Step("label", 5.0, {"mode": "share"}),
            Step("create", 0.3, {"pod": 3, "shape": "memory"}),
            Step("create", 0.3, {"pod": 8, "shape": "memory"}),
            Step("create", 0.0, {"pod": 9, "shape": "memory"}),
            Step(
                "restart_kubelet",
                1.0,
                {"away": 1.79, "late": 0.02, "forgets": True, "has_get": True},
            ),
            Step("release_after", 40.0),
            Step("api_away", 1.0, {"seconds": 70.0}),
            Step("swap", 20.0, {"one": 3, "other": 8, "grace": 0.0, "by_force": False}),
        ),
    ),
    "a pod that asked for nothing is made again under its name, and the watch is behind": (
        0,
        (
            Step("create", 5.0, {"pod": 1, "shape": "small"}),
            Step("create", 5.0, {"pod": 2, "shape": "nothing"}),
            Step("api_behind", 1.0, {"seconds": 300.0, "lag": 60.0}),
            Step("replace", 20.0, {"pod": 2, "shape": "plain"}),
        ),
    ),
}


@pytest.mark.parametrize("name", _FOUND)
def test_what_was_wrong_once_is_right(name: str) -> None:
    """Each of these broke a promise before it was mended, with this seed."""
    seed, steps = _FOUND[name]

    assert play(steps, seed).violation == ""


@pytest.mark.parametrize("seed", range(8))
def test_nothing_forbidden_happens(seed: int) -> None:
    """A few of the histories that `make histories` plays."""
    assert play(made(seed), seed).violation == ""


def test_the_model_notices_files_that_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail checks nothing."""

    def vanish(node: Node) -> None:
        shutil.rmtree(node.machine.root / "run" / "slices")

    monkeypatch.setitem(actions.ACTIONS, "vanish", vanish)
    outcome = play((_ONE_POD[0], Step("vanish")))

    assert "was removed or changed" in outcome.violation


@pytest.mark.parametrize("amiss", ["_hook", "_repair"])
def test_the_model_notices_a_container_without_its_limit(
    monkeypatch: pytest.MonkeyPatch, amiss: str
) -> None:
    """From its start, or because nobody sets it again."""
    monkeypatch.setattr(DriverLimits, amiss, lambda *_: "held")
    create = Step("create", 8.0, {"pod": 1, "shape": "plain"})
    outcome = play((Step("limits_begin", 8.0), create, Step("limits_lost", 60.0)))

    since = "its start" if amiss == "_hook" else ""
    assert f"has limits {{}} since {since}" in outcome.violation


def test_the_model_notices_a_grant_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the ledger."""

    def forget(node: Node) -> None:
        for path in node.file("grants").parent.glob("grants*"):
            path.unlink()

    monkeypatch.setitem(actions.ACTIONS, "forget", forget)
    outcome = play((_ONE_POD[0], Step("forget")))

    assert "no grant says so" in outcome.violation


def test_the_judge_notices_what_is_told_and_not_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what is published: a card of another size, of which NVML tells nobody."""

    def shrink(node: Node) -> None:
        node.driver.cards[0].memory_mib -= 10  # as many units

    monkeypatch.setitem(actions.ACTIONS, "shrink", shrink)
    outcome = play((Step("shrink"),))

    assert "told a minute after everything was quiet: card 0" in outcome.violation


_CUT = (
    Step("nvidia", 2.0),
    Step("card_cut", 60.0, {"card": 1, "instances": 3}),
    Step("create", 80.0, {"pod": 8, "shape": "instance"}),
)


def test_an_xid_of_an_instance_leaves_the_others_offered_and_a_judge_looks() -> None:
    """An agent that took them out would be found by it."""
    outcome = play((*_CUT, Step("xid", 20.0, {"card": 1, "code": 94})))

    assert outcome.violation == ""
    assert outcome.explored["XIDs of an instance"] == 1
    assert any("XID 94 (contained ECC error) of MIG" in line for line in outcome.story)


def test_containers_of_instances_start_while_the_agent_is_away() -> None:
    """A start that asked it would be found."""
    away = Step("agent_away", 2.0, {"seconds": 30.0})
    outcome = play((*_CUT, away, Step("restart_container", 20.0, {"pod": 8, "container": 0})))

    assert outcome.violation == ""
    assert sum("p8/main runs" in line for line in outcome.story) == 2


def test_the_judge_notices_a_pod_that_fits_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cards have a pod that is alone on its card, so the agent refuses; the judge is told that there is room."""
    monkeypatch.setattr(refusals, "_fits", lambda *_: True)
    alone = [Step("create", 2.0, {"pod": n, "shape": "alone"}) for n in range(2)]
    outcome = play((*alone, Step("create", 2.0, {"pod": 2, "shape": "plain"})))

    assert "p2 fits by the kubelet's own book, and it was refused (NoRoom)" in outcome.violation


def test_pods_of_a_statefulset_come_back_with_their_names_swapped() -> None:
    """On the other card, after their containers have ended; a forced one is forgotten before."""
    outcome = play(
        (
            Step("create", 2.0, {"pod": 0, "shape": "whole"}),
            Step("create", 8.0, {"pod": 1, "shape": "whole"}),
            Step("swap", 8.0, {"one": 0, "other": 1, "grace": 3.0}),
        )
    )
    given = [line for line in outcome.story if "granted pod" in line and "gpu-mem" in line]
    cards = [line[-50:] for line in given]

    assert len(cards) == 4
    assert cards[:2] == cards[2:]
    assert [line.partition("default/")[2][:2] for line in given] == ["p0", "p1", "p1", "p0"]


def test_a_failing_history_is_made_as_short_as_it_can_be() -> None:
    """Only what makes it fail is left."""
    steps = [Step("create", what={"pod": number}) for number in range(20)]

    def is_bad(shorter: Sequence[Step]) -> bool:
        return {3, 17} <= {step.what["pod"] for step in shorter}

    assert [step.what["pod"] for step in shortened(steps, is_bad)] == [3, 17]
