"""Checks of one caller in each security mode, and what a caller learns from a refusal (rules Z3, Z7, Z8, Z11)."""

from __future__ import annotations

import pytest

from fairlead_api.access_needs import (
    PUBLIC,
    SELF,
    Access,
    Kind,
    Operation,
    each_in_body,
    needs,
    on,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import Acl, AclIndex, Effect
from fairlead_broker.access.caller import NOBODY, Caller
from fairlead_broker.access.caller_access import OPEN_ACCESS, CallerAccess
from fairlead_broker.access.decision import CallerRules
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.access.would_be_denied import DeniedOperation

ANN = Caller(principal="user:ann")
ROOT = Caller(principal="user:root")
READ = needs(on(Operation.READ, Kind.TOPIC), each_in_body(Operation.READ, Kind.GROUP))
ALTER = needs(on(Operation.ALTER, Kind.CLUSTER))
PATH = {"topic": "a.1"}


def acl(
    principal: str,
    pattern: str,
    *operations: Operation,
    kind: Kind = Kind.TOPIC,
    effect: Effect = Effect.ALLOW,
) -> Acl:
    """Return an ACL."""
    return Acl(
        effect=effect,
        principal=principal,
        operations=frozenset(map(str, operations)),
        kind=kind,
        pattern=pattern,
    )


class Checks:
    """Access of a caller, and the operations that it reported as denied, each with whether it was only observed."""

    def __init__(self, caller: Caller, mode: SecurityMode, *acls: Acl, is_closed: bool = False) -> None:
        self.denied: list[tuple[DeniedOperation, bool]] = []
        rules = CallerRules(AclIndex(acls), caller, ("user:root",))
        self.access = CallerAccess(
            caller,
            rules,
            mode,
            lambda denied, observed: self.denied.append((denied, observed)),
            is_closed=is_closed,
        )

    def code(self, access: Access, parameters: dict[str, str] = PATH) -> str | None:
        """Return the code of the problem that a check raises."""
        try:
            self.access.check(access, parameters)
        except ProblemError as problem:
            return problem.code
        return None


def test_a_call_is_refused_in_enforce_mode_only() -> None:
    """A call that no ACL allows is refused in `enforce`, counted in `observe`, and not even checked in `open` mode."""
    modes = {mode: Checks(ANN, mode) for mode in SecurityMode}

    assert {mode: checks.code(READ) for mode, checks in modes.items()} == {
        SecurityMode.OPEN: None,
        SecurityMode.OBSERVE: None,
        SecurityMode.ENFORCE: "forbidden",
    }
    denied = DeniedOperation("user:ann", "read", "topic:a.1")
    assert modes[SecurityMode.OPEN].denied == []
    assert modes[SecurityMode.OBSERVE].denied == [(denied, True)]
    assert modes[SecurityMode.ENFORCE].denied == [(denied, False)]


def test_an_acl_allows_what_it_names_and_nothing_else() -> None:
    """An ACL allows its operation on names that its pattern matches; the endpoint checks names in the body."""
    checks = Checks(ANN, SecurityMode.ENFORCE, acl("user:ann", "a.*", Operation.READ, Operation.DESCRIBE))

    assert checks.code(READ) is None
    assert checks.code(READ, {"topic": "b"}) == "forbidden"
    assert checks.code(ALTER, {}) == "forbidden"
    assert [checks.access.sees(Kind.TOPIC, name) for name in ("a.1", "b")] == [True, False]
    assert checks.denied[-1][0].resource == "cluster:*"


def test_a_prefix_needs_a_rule_that_covers_all_its_names() -> None:
    """An operation on a prefix is refused unless one rule covers the prefix; `observe` counts the refusal."""
    allowed = acl("user:ann", "a.*", Operation.READ)
    for mode in SecurityMode:
        checks = Checks(ANN, mode, allowed)
        checks.access.require_all(Operation.READ, Kind.TOPIC, "a.b")
        assert checks.denied == []
    Checks(ANN, SecurityMode.OBSERVE, allowed).access.require_all(Operation.READ, Kind.TOPIC, "b")

    with pytest.raises(ProblemError) as refused:
        Checks(ANN, SecurityMode.ENFORCE, allowed).access.require_all(Operation.READ, Kind.TOPIC, "b")

    assert refused.value.code == "forbidden"
    assert refused.value.data == {"operation": "read", "resource": "topic:b*"}


def test_a_subscription_needs_every_topic() -> None:
    """A subscription needs `read` on its topics and on the prefix of its pattern, internal topics a rule of their own.

    In `open` mode, nothing is decided; `observe` counts each missing right (rule Z14).
    """
    allowed = acl("user:ann", "a.*", Operation.READ), acl("user:ann", "__a", Operation.READ)
    anything = acl("user:ann", "*", Operation.READ)

    def refused(*acls: Acl, topics: tuple[str, ...] = (), pattern: str | None = None) -> object:
        try:
            Checks(ANN, SecurityMode.ENFORCE, *acls).access.require_subscription(topics, pattern)
        except ProblemError as problem:
            return problem.data["resource"]
        return None

    observed = Checks(ANN, SecurityMode.OBSERVE, *allowed)
    observed.access.require_subscription(("a.1", "b", "c"), ".*")
    Checks(ANN, SecurityMode.OPEN).access.require_subscription(("b",), ".*")

    assert refused(*allowed) is refused(*allowed, topics=("a.1", "__a")) is None
    assert refused(*allowed, topics=("a.1", "b")) == "topic:b"
    assert [refused(*allowed, pattern=each) for each in (r"a\..*", "a.*", ".*", "__a")] == [
        None, "topic:a*", "topic:*", "topic:__a*",
    ]  # fmt: skip
    assert [refused(anything, pattern=each) for each in (".*", "_.*", "__.*")] == [None, None, "topic:__*"]
    assert [(denied.resource, only) for denied, only in observed.denied] == [
        ("topic:b", True), ("topic:c", True), ("topic:*", True),
    ]  # fmt: skip


def test_a_caller_without_a_token_is_asked_for_one() -> None:
    """A stranger gets the problem `unauthenticated`; an ACL for `anonymous` admits callers without a token."""
    anonymous = acl("anonymous", "a.*", Operation.READ)
    strangers = {mode: Checks(NOBODY, mode) for mode in SecurityMode}
    guest = Checks(NOBODY, SecurityMode.ENFORCE, anonymous)

    assert {mode: checks.access.is_stranger for mode, checks in strangers.items()} == {
        SecurityMode.OPEN: False,
        SecurityMode.OBSERVE: False,
        SecurityMode.ENFORCE: True,
    }
    assert [strangers[mode].code(SELF) for mode in SecurityMode] == [None, None, "unauthenticated"]
    assert strangers[SecurityMode.OBSERVE].denied == [(DeniedOperation("anonymous", "call", "any"), True)]
    assert [strangers[SecurityMode.ENFORCE].code(each) for each in (PUBLIC, READ)] == [
        None,
        "unauthenticated",
    ]
    assert not guest.access.is_stranger
    assert [guest.code(SELF), guest.code(READ)] == [None, None]


def test_a_closed_caller_gets_public_answers_only() -> None:
    """While an ACL cannot be read, calls of callers that are no superusers are answered with 503 (rule Z11)."""
    checks = Checks(ANN, SecurityMode.ENFORCE, acl("user:ann", "*", Operation.READ), is_closed=True)

    assert [checks.code(each) for each in (PUBLIC, SELF, READ)] == [None, *2 * ["coordination_unavailable"]]


def test_the_mode_decides_what_is_hidden_and_owned() -> None:
    """Lists hide names, and new objects have an owner, in `enforce` mode only; a superuser sees every name."""
    for mode in SecurityMode:
        ann, root = (Checks(caller, mode).access for caller in (ANN, ROOT))
        enforces = mode is SecurityMode.ENFORCE
        assert (ann.holds, ann.hides, root.hides) == (enforces, enforces, False)
        assert ann.owner == ("user:ann" if enforces else None)
        assert ann.sees(Kind.TOPIC, "a") is not enforces
        assert root.sees(Kind.TOPIC, "a")
        root.require_all(Operation.DELETE, Kind.TOPIC, "")


def test_open_access_allows_everything_and_counts_nothing() -> None:
    """The access of calls in `open` mode allows each operation; a report of a denied operation is ignored."""
    OPEN_ACCESS.require(Operation.DELETE, Kind.TOPIC, "a")
    OPEN_ACCESS.require_all(Operation.DELETE, Kind.TOPIC, "")
    OPEN_ACCESS._report_denied(DeniedOperation("anonymous", "read", "topic:a"), False)

    assert OPEN_ACCESS.is_open


def test_the_stricter_of_two_modes() -> None:
    """`enforce` is stricter than `observe`, which is stricter than `open`."""
    order = tuple(SecurityMode)
    for place, mode in enumerate(order):
        for other in order[: place + 1]:
            assert mode.stricter(other) is other.stricter(mode) is mode


def test_a_token_is_accepted_until_its_expiry_and_its_leeway() -> None:
    """A token without an expiry is always accepted; the leeway of a signed token extends its expiry."""
    signed = Caller(principal="corp:ann", expires_us=1_000, leeway_us=60)

    assert (Caller(principal="user:ann").accepted_until_us, signed.accepted_until_us) == (None, 1_060)
