"""The model of transactions: its rules hold in every state, and each rule is needed; `make prove` searches more."""

from __future__ import annotations

import pytest

from transaction_model import RULES, SWITCHES, explored, without

SECONDS_MAX = 300.0
SLOW = "reason"
"""Rule whose violation takes seconds to find."""


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.scenario] if rule == SLOW else []) for rule in SWITCHES],
)
def test_each_rule_is_needed(rule: str) -> None:
    """If a rule is left out, the search finds a violation of an invariant."""
    found = explored(without(rule), SECONDS_MAX)

    assert found.violation is not None, found


@pytest.mark.scenario
@pytest.mark.parametrize(
    "name",
    [
        "zombie, a crash, an abort",
        "one instance, 3 inputs, 2 leader changes",
        "one instance, commits with batches",
    ],
)
def test_the_rules_hold_in_every_state(name: str) -> None:
    """With all rules, no state violates an invariant, and every transaction can end from every state."""
    found = explored(RULES[name], SECONDS_MAX)

    assert (found.is_complete, found.violation) == (True, None), found
