"""The model of quorum replication: its rules hold in every state, and each rule is needed.

`make prove PROVE=quorum-model` searches every world.
"""

from __future__ import annotations

import pytest

from quorum_model import RULES, SWITCHES, explored, without

SECONDS_MAX = 300.0
SLOW = {"own epoch", "by end alone", "guard", "epoch start for voters", "progress before reconciling"}
"""Rules whose violations take seconds to find."""


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.scenario] if rule in SLOW else []) for rule in SWITCHES],
)
def test_each_rule_is_needed(rule: str) -> None:
    """If a rule is left out, the search finds a violation of an invariant."""
    found = explored(without(rule), SECONDS_MAX)

    assert found.violation is not None, found


@pytest.mark.scenario
@pytest.mark.parametrize("name", ["1 kill, live", "3/3: 1 wipe", "1 damage"])
def test_the_rules_hold_in_every_state(name: str) -> None:
    """With all rules, no state violates an invariant, and every state of a live world leads back to a full quorum."""
    found = explored(RULES[name], SECONDS_MAX)

    assert (found.is_complete, found.violation) == (True, None), found
