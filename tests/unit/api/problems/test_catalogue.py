"""The rules of the catalogue of problems.

Codes, statuses, side effects and data members are tested in tests/contract.
"""

from __future__ import annotations

import pytest

from fairlead_api.problems import CATALOGUE
from fairlead_api.problems.definitions import ProblemKind

REFRESH = {
    "not_leader",
    "not_coordinator",
    "stale_leader_epoch",
    "unknown_leader_epoch",
    "no_leader",
    "leader_changed",
    "topic_recreated",
}
FENCED = {"producer_fenced", "member_fenced", "instance_fenced", "stale_member_epoch", "stale_broker_epoch"}
DATA_LOSS = {"offset_expired", "log_truncated", "log_damaged", "unknown_producer"}


def kind_by_rule(code: str, status: int) -> ProblemKind:
    """Return the kind according to the contract's rule: listed for some codes, otherwise determined by the status."""
    if code in REFRESH:
        return ProblemKind.REFRESH
    if code in FENCED:
        return ProblemKind.FENCED
    if code in DATA_LOSS:
        return ProblemKind.DATA_LOSS
    if status in (429, 503, 504, 507):
        return ProblemKind.RETRY
    return ProblemKind.BUG if status == 500 else ProblemKind.FIX


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_the_kind_follows_the_rule_of_the_contract(code: str) -> None:
    """The kind of a problem follows from its code according to the contract's rule."""
    entry = CATALOGUE[code]

    assert entry.kind is kind_by_rule(code, entry.status)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_problem_explains_itself_and_names_the_next_step(code: str) -> None:
    """A problem's page has a title, sentences about the cause and the next step, and no repeated members."""
    entry = CATALOGUE[code]
    members = [member.name for member in entry.data_members]

    assert entry.code == code
    assert entry.title[0].isupper()
    assert not entry.title.endswith(".")
    assert entry.explanation.endswith((".", ")"))
    assert entry.next_step.endswith(".")
    assert len(members) == len(set(members))
