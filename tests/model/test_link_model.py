"""The model of links: its rules hold in every state, and each rule is needed."""

from __future__ import annotations

import pytest

from link_model import RULES, SWITCHES, explored, without

SECONDS_MAX = 300.0


@pytest.mark.parametrize("rule", SWITCHES)
def test_each_rule_is_needed(rule: str) -> None:
    """Without the rule, the search finds a violation of an invariant."""
    found = explored(without(rule), SECONDS_MAX)

    assert found.violation is not None, found


@pytest.mark.parametrize("name", RULES)
def test_the_rules_hold_in_every_state(name: str) -> None:
    """With all rules, no state violates an invariant."""
    found = explored(RULES[name], SECONDS_MAX)

    assert (found.is_complete, found.violation) == (True, None), found
