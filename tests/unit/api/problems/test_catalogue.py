"""The catalogue of problems, held against the contract's own table."""

from __future__ import annotations

import pytest

from fairlead_api.problems.catalogue import CATALOGUE
from fairlead_api.problems.definitions import ProblemKind, SideEffect

# The contract's table of statuses.
STATUSES = {
    400: "malformed_batch malformed_request unsupported_version crc_mismatch",
    401: "unauthenticated",
    403: "forbidden producer_fenced",
    404: "topic_not_found partition_not_found group_not_found member_not_found broker_not_found route_not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "topic_exists topic_recreated log_truncated out_of_order_sequence unknown_producer group_not_empty "
    "member_fenced instance_fenced reassignment_in_progress restart_refused conflict",
    410: "offset_expired",
    412: "stale_member_epoch stale_leader_epoch unknown_leader_epoch",
    413: "batch_too_large body_too_large",
    415: "unsupported_media_type",
    416: "offset_out_of_range",
    421: "not_leader not_coordinator",
    422: "invalid_record invalid_topic_name invalid_group_name invalid_pattern group_too_large invalid_config "
    "unknown_option idempotency_key_reused",
    429: "throttled",
    500: "log_damaged storage_failed internal",
    503: "not_enough_replicas no_leader offset_not_available shutting_down overloaded coordination_unavailable "
    "leader_changed",
    504: "ack_timeout not_enough_replicas_after_append",
    507: "disk_full",
}
# Codes that the contract does not have (decision records 0220, 0603).
OUR_OWN = {"peer_refused": 403, "not_possible_now": 409, "stale_broker_epoch": 412, "headers_too_large": 431}
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
    """Return the kind as the contract words it: some codes by name, all others by status."""
    if code in REFRESH:
        return ProblemKind.REFRESH
    if code in FENCED:
        return ProblemKind.FENCED
    if code in DATA_LOSS:
        return ProblemKind.DATA_LOSS
    if status in (429, 503, 504, 507):
        return ProblemKind.RETRY
    return ProblemKind.BUG if status == 500 else ProblemKind.FIX


def test_the_catalogue_has_exactly_the_codes_of_the_contract_with_their_statuses() -> None:
    """Every code stands there once, under its status, and no other does."""
    expected = {code: status for status, codes in STATUSES.items() for code in codes.split()}

    assert expected.keys().isdisjoint(OUR_OWN)
    assert {code: entry.status for code, entry in CATALOGUE.items()} == expected | OUR_OWN


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_the_kind_follows_the_rule_of_the_contract(code: str) -> None:
    """The kind of a code is the one that the contract's sentence about kinds gives it."""
    entry = CATALOGUE[code]

    assert entry.kind is kind_by_rule(code, entry.status)


def test_only_problems_after_the_append_may_have_a_side_effect() -> None:
    """`maybe` is the side effect of the three problems that arise after an append, `none` of all others."""
    maybe = {code for code, entry in CATALOGUE.items() if entry.side_effect is SideEffect.MAYBE}

    assert maybe == {"ack_timeout", "not_enough_replicas_after_append", "leader_changed"}


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_problem_explains_itself_and_names_the_next_step(code: str) -> None:
    """A page of a problem has a title, sentences on what happened and what to do, and members without repeats."""
    entry = CATALOGUE[code]
    members = [member.name for member in entry.data_members]

    assert entry.code == code
    assert entry.title[0].isupper()
    assert not entry.title.endswith(".")
    assert entry.explanation.endswith((".", ")"))
    assert entry.next_step.endswith(".")
    assert len(members) == len(set(members))


def test_the_data_that_the_contract_names_is_described() -> None:
    """The codes for which the contract lists data describe these members."""
    named = {code: {member.name for member in entry.data_members} for code, entry in CATALOGUE.items()}

    assert {"expected", "actual"} <= named["topic_recreated"]
    assert {"epoch", "end_offset"} <= named["log_truncated"]
    assert {"expected"} <= named["out_of_order_sequence"]
    assert {"address", "leader_epoch"} <= named["not_leader"]
    assert {"address", "epoch"} <= named["not_coordinator"]
    assert {"first_offset", "next_good_offset"} <= named["log_damaged"]
