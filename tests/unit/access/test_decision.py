"""Decisions equal those of a naive walk over all ACLs, for random rules, callers and names (rules Z5, Z6; proof V4).

The number of cached decisions has two limits (rule Z9).
`tests/security/access_searches.py` compares the decisions for more random rule sets.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from access_kit import NAMES, PREFIXES, SUPERUSERS, naive, some_acls, some_caller
from fairlead_api.access_needs import SINGLE_KINDS, Kind, Operation
from fairlead_api.identifiers import NAME_LENGTH_MAX
from fairlead_broker.access import decision as decisions
from fairlead_broker.access.acl_index import Acl, AclIndex, Effect
from fairlead_broker.access.caller import NOBODY, Caller
from fairlead_broker.access.decision import DECISIONS_MAX, CachedDecisions, CallerRules, DecisionTable

if TYPE_CHECKING:
    import pytest


def compare(seed: int) -> None:
    """Compare the decisions of the index and of a naive walk on every operation and name, for one random rule set."""
    chance = random.Random(seed)
    acls, caller, superusers = some_acls(chance), some_caller(chance), chance.choice(SUPERUSERS)
    rules = CallerRules(AclIndex(acls), caller, superusers)
    resources = [(kind, name) for kind in Kind for name in (("*",) if kind in SINGLE_KINDS else NAMES)]
    for operation in Operation:
        for kind, name in resources:
            decision = rules.decide(operation, kind, name)
            expected = naive(acls, caller, superusers, operation, kind, name)

            assert decision.allowed is expected, (seed, acls, caller, superusers, operation, kind, name)
            explained = {acl.acl_id for acl in acls} | {"superuser", "no ACL allows it"}
            assert decision.because in explained


def test_decisions_equal_those_of_a_naive_walk() -> None:
    """The index gives the same decisions as a naive walk over all ACLs; the reason is an ACL or a known word."""
    for seed in range(400):
        compare(seed)


def test_a_deny_never_allows_and_a_removed_allow_never_allows() -> None:
    """Adding a deny rule or removing an allow rule never allows an operation that was refused before."""
    chance = random.Random(7)
    for _ in range(200):
        acls, caller = some_acls(chance), some_caller(chance)
        stricter = [acl for acl in acls if acl.effect is Effect.DENY or chance.random() < 0.5]
        stricter += [acl for acl in some_acls(chance) if acl.effect is Effect.DENY]
        before, after = (CallerRules(AclIndex(each), caller, ()) for each in (acls, stricter))
        for operation in Operation:
            for name in NAMES:
                loose = before.decide(operation, Kind.TOPIC, name).allowed

                assert loose or not after.decide(operation, Kind.TOPIC, name).allowed


def test_the_id_of_an_acl_follows_from_its_content() -> None:
    """The id of an ACL follows from its content, whatever the order of its operations (rule Z4)."""

    def acl(*operations: str) -> Acl:
        return Acl(
            effect=Effect.ALLOW,
            principal="user:ann",
            operations=frozenset(operations),
            kind=Kind.TOPIC,
            pattern="a*",
        )

    assert acl("read", "write").acl_id == acl("write", "read").acl_id != acl("read").acl_id
    assert len(acl("read").acl_id) == 16


def test_an_anonymous_caller_is_never_a_superuser() -> None:
    """A caller without a token is not a superuser, even if the superuser pattern matches every name."""
    rules = CallerRules(AclIndex(()), NOBODY, ("*",))

    assert not rules.is_superuser
    assert not rules.allows_anything
    assert not rules.can_set_back


def test_a_right_on_every_name_of_a_prefix_is_never_more_than_the_rights_on_names() -> None:
    """A right on a prefix includes every name with that prefix, and one allow rule on the prefix grants the right."""
    chance = random.Random(3)
    for _ in range(500):
        acls, caller = some_acls(chance), some_caller(chance)
        rules = CallerRules(AclIndex(acls), caller, ())
        for prefix in PREFIXES:
            if rules.allows_all(Operation.READ, Kind.TOPIC, prefix):
                names = [name for name in (*NAMES, prefix + "zz") if name.startswith(prefix)]
                shown = [name for name in names if prefix.startswith("__") or not name.startswith("__")]

                assert all(rules.decide(Operation.READ, Kind.TOPIC, name).allowed for name in shown), acls
    acl = Acl(
        effect=Effect.ALLOW, principal="*", operations=frozenset({"read"}), kind=Kind.TOPIC, pattern="shop.*"
    )
    rules = CallerRules(AclIndex([acl]), Caller(principal="user:ann"), ())

    assert [rules.allows_all(Operation.READ, Kind.TOPIC, each) for each in ("shop.", "shop.a", "shop", "")] == [
        True, True, False, False,
    ]  # fmt: skip


READ_A = Acl(
    effect=Effect.ALLOW, principal="user:*", operations=frozenset({"read"}), kind=Kind.TOPIC, pattern="a*"
)


def test_a_full_cache_of_decisions_is_cleared() -> None:
    """A caller that asks for more names than the cache holds still gets right decisions (rule Z9)."""
    cached = CachedDecisions()
    rules = CallerRules(AclIndex([READ_A]), Caller(principal="user:ann"), (), cached)
    counts = []
    for number in range(DECISIONS_MAX + 1):
        assert rules.decide(Operation.READ, Kind.TOPIC, f"a{number}").allowed
        assert not rules.decide(Operation.READ, Kind.TOPIC, f"b{number}").allowed
        counts.append(cached.count)

    assert max(counts) == DECISIONS_MAX
    assert counts[-1] == 2


def test_a_decision_about_a_name_of_any_length_is_right_and_only_short_names_are_cached() -> None:
    """Names that no resource can have take no memory."""
    cached = CachedDecisions()
    rules = CallerRules(AclIndex([READ_A]), Caller(principal="user:ann"), (), cached)
    for length in (NAME_LENGTH_MAX, NAME_LENGTH_MAX + 1):
        assert rules.decide(Operation.READ, Kind.TOPIC, "a" * length).allowed
        assert not rules.decide(Operation.READ, Kind.TOPIC, "b" * length).allowed

    assert cached.count == 2


def test_the_oldest_decisions_make_room_for_decisions_of_other_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the limit of all callers, the decisions of the caller with the oldest decision are dropped (rule Z9).

    A decision that is still cached is the same object as before.
    """
    monkeypatch.setattr(decisions, "DECISIONS_IN_ALL_MAX", 4)
    index, cached = AclIndex([READ_A]), CachedDecisions()
    ann, bob, cid = (
        CallerRules(index, Caller(principal=f"user:{name}"), (), cached) for name in ("ann", "bob", "cid")
    )
    first = [
        rules.decide(Operation.READ, Kind.TOPIC, name)
        for rules, name in ((ann, "a1"), (bob, "a1"), (ann, "a2"))
    ]
    full = [cid.decide(Operation.READ, Kind.TOPIC, name) for name in ("a1", "a2")]
    after_drop = cached.count
    kept = bob.decide(Operation.READ, Kind.TOPIC, "a1")
    decided_again = ann.decide(Operation.READ, Kind.TOPIC, "a1")

    assert after_drop == 3
    assert kept is first[1]
    assert decided_again == first[0]
    assert decided_again is not first[0]
    assert [cid.decide(Operation.READ, Kind.TOPIC, name) for name in ("a1", "a2")] == full


def test_decisions_never_exceed_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """For random decisions of random callers, the count is right and within both limits. Clearing leaves none."""
    monkeypatch.setattr(decisions, "DECISIONS_MAX", 5)
    monkeypatch.setattr(decisions, "DECISIONS_IN_ALL_MAX", 17)
    chance, cached = random.Random(11), CachedDecisions()
    tables: list[DecisionTable] = [{} for _ in range(9)]
    allowed = CallerRules(AclIndex([READ_A]), Caller(principal="user:ann"), ()).decide(
        Operation.READ, Kind.TOPIC, "a"
    )
    for number in range(3000):
        table, key = chance.choice(tables), (Operation.READ, Kind.TOPIC, f"a{number}")
        cached.add(table, key, allowed)

        assert table[key] is allowed
        assert max(map(len, tables)) <= 5
        assert sum(map(len, tables)) == cached.count <= 17
    cached.clear()
    emptied = list(tables)
    cached.add(tables[0], (Operation.READ, Kind.TOPIC, "a"), allowed)

    assert [len(each) for each in emptied] == [1, *[0] * 8]
    assert cached.count == 1
