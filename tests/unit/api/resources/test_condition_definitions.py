from __future__ import annotations

import re

import pytest

from fairlead_api.resources.condition_definitions import ConditionName, ConditionType, Polarity
from fairlead_api.resources.conditions import CONDITIONS, needs_attention, reason_of

TYPES = pytest.mark.parametrize("type_", CONDITIONS.values(), ids=lambda each: each.name)


def test_every_name_has_its_entry() -> None:
    """The catalogue has an entry for every condition."""
    assert set(CONDITIONS) == set(ConditionName)


@TYPES
def test_reasons_are_words_once(type_: ConditionType) -> None:
    """A reason is one word in CamelCase, as Kubernetes requires, and is unique within its condition."""
    names = [reason.name for reason in type_.reasons]

    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"([A-Z][a-z]+)+", name)] == []


@TYPES
def test_every_reason_says_what_it_means_and_what_to_do(type_: ConditionType) -> None:
    """The meaning and the next step of a reason are complete sentences."""
    texts = [
        type_.meaning,
        *(text for reason in type_.reasons for text in (reason.meaning, reason.next_step)),
    ]

    assert [text for text in texts if not text.endswith((".", ")."))] == []


@TYPES
def test_statuses_fit_the_polarity(type_: ConditionType) -> None:
    """All reasons of a bad condition have the status True; a good condition has reasons for True and for False."""
    statuses = [set(reason.statuses) for reason in type_.reasons]
    known = {"True", "False", "Unknown"}

    assert all(each and each <= known for each in statuses)
    if type_.polarity is Polarity.BAD_WHEN_TRUE:
        assert all(each == {"True"} for each in statuses)
    if type_.polarity is Polarity.GOOD_WHEN_TRUE:
        assert any("True" in each for each in statuses)
        assert any("False" in each for each in statuses)


@TYPES
def test_reasons_belong_to_kinds_that_have_the_condition(type_: ConditionType) -> None:
    """A reason belongs only to kinds of resources that have its condition."""
    assert [reason.name for reason in type_.reasons if not set(reason.kinds) & set(type_.kinds)] == []


def test_a_reason_is_found_by_type_and_name() -> None:
    """A reason is looked up by condition and name, because two conditions may have reasons of the same name."""
    found = reason_of(ConditionName.READY, "ClusterNotFound")

    assert found is not None
    assert found.name == "ClusterNotFound"
    assert reason_of(ConditionName.ETCD_HEALTHY, "ClusterNotFound") is None


@pytest.mark.parametrize(
    ("name", "needing"),
    [
        ("Ready", {"False", "Unknown"}),
        ("RollBlocked", {"True"}),
        ("Progressing", set()),
        ("OfAnotherRelease", set()),
    ],
)
def test_a_condition_needs_attention_by_its_polarity(name: str, needing: set[str]) -> None:
    """Attention is needed if a good condition is not True or a bad condition is True, never for a neutral condition."""
    assert {status for status in ("True", "False", "Unknown") if needs_attention(name, status)} == needing
