from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import (
    MESSAGE_LENGTH_MAX,
    Condition,
    condition,
    find_condition,
    rfc3339,
    set_condition,
    without_condition,
)
from refusals import raises

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def ready(status: str, reason: str, now: datetime, message: str = "") -> Condition:
    """Return the Ready condition."""
    assert status in {"True", "False", "Unknown"}
    return condition(ConditionName.READY, status, reason, message, now=now, generation=1)  # type: ignore[arg-type]


def test_the_time_stays_while_the_status_does() -> None:
    """The transition time of a condition changes only with its status, not with a new reason or message."""
    first = set_condition((), ready("False", "Starting", NOON))
    second = set_condition(first, ready("False", "BrokersNotReady", LATER, "main-a-0"))

    assert second[0].last_transition_time == "2026-05-01T12:00:00Z"
    assert (second[0].reason, second[0].message) == ("BrokersNotReady", "main-a-0")


def test_the_time_moves_when_the_status_flips() -> None:
    """The transition time of a condition is the time at which its status changes."""
    flipped = set_condition(
        set_condition((), ready("False", "Starting", NOON)), ready("True", "Available", LATER)
    )

    assert flipped[0].last_transition_time == "2026-05-01T12:05:00Z"


def test_the_first_judgement_is_dated_by_its_own_time() -> None:
    """The first condition that the operator sets has the current time, even if the status is still Unknown."""
    born = Condition(
        type="Ready", status="Unknown", reason="NotReconciled", last_transition_time="1970-01-01T00:00:00Z"
    )
    judged = set_condition((born,), ready("Unknown", "ClusterNotReady", NOON))

    assert judged[0].last_transition_time == "2026-05-01T12:00:00Z"


def test_setting_the_same_again_changes_nothing() -> None:
    """A condition that is set again without a change equals the previous condition, so that nothing is written."""
    once = set_condition((), ready("True", "Available", NOON))

    assert set_condition(once, ready("True", "Available", LATER)) == once


def test_conditions_stand_in_the_order_of_the_catalogue() -> None:
    """Conditions are in the order of the catalogue, and a type of a newer release is kept at the end."""
    unknown = Condition(type="Novel", status="True", reason="New", last_transition_time=rfc3339(NOON))
    warning = condition(ConditionName.WARNING, "True", "SingleBroker", "one broker", now=NOON)
    conditions = set_condition((unknown, warning), ready("True", "Available", NOON))

    assert [each.type for each in conditions] == ["Ready", "Warning", "Novel"]


def test_a_condition_is_found_and_taken_away_by_its_type() -> None:
    """A condition is looked up and removed by its type."""
    conditions = set_condition((), ready("True", "Available", NOON))

    assert find_condition(conditions, ConditionName.READY) == conditions[0]
    assert find_condition(conditions, ConditionName.WARNING) is None
    assert without_condition(conditions, ConditionName.READY) == ()
    assert without_condition(conditions, ConditionName.WARNING) == conditions


def test_a_reason_outside_of_the_catalogue_is_a_broken_invariant() -> None:
    """A reason that is not in the catalogue fails an assertion."""
    with raises(AssertionError, "Ready", "Whatever"):
        ready("False", "Whatever", NOON)


def test_a_status_that_does_not_go_with_the_reason_is_a_broken_invariant() -> None:
    """A status that the catalogue does not allow for a reason fails an assertion."""
    with raises(AssertionError, "Ready", "Available"):
        ready("False", "Available", NOON)


def test_a_long_message_is_cut() -> None:
    """A long message is truncated, because otherwise the API server would refuse the whole status."""
    message = ready("False", "BrokersNotReady", NOON, "x" * 99_999).message

    assert len(message) == MESSAGE_LENGTH_MAX


def test_times_are_utc_in_whole_seconds() -> None:
    """Times of conditions are UTC in whole seconds, as in Kubernetes."""
    berlin = datetime(2026, 5, 1, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))

    assert rfc3339(berlin) == "2026-05-01T12:00:00Z"


def test_a_condition_is_written_as_all_of_kubernetes_does() -> None:
    """A condition has the field names of metav1.Condition."""
    assert ready("True", "Available", NOON, "fine").manifest() == {
        "type": "Ready",
        "status": "True",
        "reason": "Available",
        "message": "fine",
        "lastTransitionTime": "2026-05-01T12:00:00Z",
        "observedGeneration": 1,
    }
