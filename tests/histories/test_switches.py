"""No mode is switched under pods that hold slices, however little the kubelet lists."""

from tests.histories.history import play
from tests.histories.steps import Step

_WAITING_SWITCH = (
    Step("create", 20.0, {"pod": 1, "shape": "plain"}),
    Step("label", 10.0, {"mode": "cgpu"}),
)


def test_a_switch_waits_for_pods_that_a_kubelet_without_the_api_server_does_not_list() -> None:
    """A kubelet that was restarted lists nothing until it has reached the API server."""
    outcome = play(
        (
            *_WAITING_SWITCH,
            Step("api_away", 1.0, {"seconds": 170.0}),
            Step("restart_kubelet", 170.0, {"away": 1.0, "late": 160.0}),
        )
    )
    story = "\n".join(outcome.story)

    assert outcome.violation == ""
    assert "waits: the node stays in core_mem" in story
    assert "switched from mode" not in story


def test_a_switch_happens_when_the_pods_have_gone() -> None:
    """The other side: it does not wait for ever."""
    outcome = play((*_WAITING_SWITCH, Step("delete", 60.0, {"pod": 1})))

    assert outcome.violation == ""
    assert "switched from mode core_mem to cgpu" in "\n".join(outcome.story)
