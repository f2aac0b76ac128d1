"""What `why` tells of one pod outlasts any number of refusals of others."""

from gpu_device_plugin.domain.grants.decision_log import Decision, DecisionLog

FLOOD = "ReplicaSet default/flood"


def decision(pod: str, seconds: float, owner: str = "", reason: str = "NoRoom") -> Decision:
    """A refusal, or with an empty reason a grant."""
    outcome = f"refused {pod}" if reason else f"granted {pod}"
    return Decision(f"default/{pod}", "main", "2 units", (), outcome, reason, seconds, owner)


def flooded(*before: Decision, pods: int = 50, limit: int = 10) -> DecisionLog:
    """A log of these decisions, and after them refusals of so many pods of one ReplicaSet."""
    log = DecisionLog(limit)
    for one in before:
        log.add(one)
    for number in range(pods):
        log.add(decision(f"flood-{number}", 100 + number, FLOOD))
    return log


def test_a_flood_of_one_owner_washes_away_nobody_elses_refusal() -> None:
    log = flooded(decision("other", 1, "Job default/other"), decision("bare", 2))
    assert "refused other" in log.why("default/other")
    assert "refused bare" in log.why("default/bare")


def test_a_flood_washes_away_no_grant_of_the_same_owner() -> None:
    log = flooded(decision("flood-fits", 1, FLOOD, reason=""))
    assert "granted flood-fits" in log.why("default/flood-fits")


def test_the_last_refusals_of_a_flood_are_told_with_how_many_there_were() -> None:
    text = flooded().why("default/flood-49")
    assert "refused flood-49" in text
    assert f"{FLOOD}: pods of it were refused 50 times since 00:01:40Z" in text


def test_an_owner_can_be_asked_for_whose_pods_are_too_many_to_name() -> None:
    text = flooded().why("default/flood")
    assert text.startswith(f"{FLOOD}: pods of it were refused 50 times")
    assert [f"flood-{n}" in text for n in (46, 47, 48, 49)] == [False, True, True, True]


def test_of_a_pod_whose_decision_was_dropped_nothing_is_known() -> None:
    assert flooded().why("default/flood-3") == ""


def test_no_more_than_the_limit_is_kept() -> None:
    log = DecisionLog(10)
    for number in range(100):
        log.add(decision(f"p{number}", number))
    assert [bool(log.of_pod(f"default/p{n}")) for n in (0, 89, 90, 99)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_single_refusal_is_told_once() -> None:
    log = flooded(pods=1)
    assert log.why("default/flood-0").count("refused") == 1
    assert "were refused once" in log.why("default/flood")
