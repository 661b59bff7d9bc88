"""Rights on all names with a prefix, which subscriptions by pattern need (rules Z6, Z14)."""

from __future__ import annotations

import random

import pytest

from access_kit import NAMES, SUBSCRIBED, assigned, some_acls, some_caller
from fairlead_api.access_needs import Kind, Operation
from fairlead_api.patterns import literal_prefix
from fairlead_broker.access.acl_index import Acl, AclIndex, Effect
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.decision import CallerRules


def acl(effect: Effect, pattern: str) -> Acl:
    """Return a rule of every caller for `read` on topics."""
    return Acl(effect=effect, principal="*", operations=frozenset({"read"}), kind=Kind.TOPIC, pattern=pattern)


def test_an_admitted_pattern_assigns_only_topics_that_may_be_read() -> None:
    """For random rules, a group assigns by an admitted pattern no topic that the caller may not read."""
    chance = random.Random(5)
    names = (*NAMES, "_a", "_b", "__b", "__abc", "a_", "x.")
    counts = dict.fromkeys(SUBSCRIBED, 0)
    for _ in range(1500):
        acls, caller = some_acls(chance), some_caller(chance)
        rules = CallerRules(AclIndex(acls), caller, ())
        for pattern in SUBSCRIBED:
            if rules.allows_all(Operation.READ, Kind.TOPIC, literal_prefix(pattern)):
                counts[pattern] += 1
                refused = [
                    name
                    for name in assigned(pattern, names)
                    if not rules.decide(Operation.READ, Kind.TOPIC, name).allowed
                ]

                assert not refused, (pattern, acls)
    assert min(counts.values()) > 0


@pytest.mark.parametrize(
    ("denied", "admitted"),
    [
        ("__*", ["", "_", "a"]),
        ("__audit", ["", "_", "a", "__b"]),
        ("*", ["__", "__a", "__b"]),
        ("_*", ["a", "__", "__a", "__b"]),
        ("_a", ["a", "__", "__a", "__b"]),
        ("ab", ["_", "__", "__a", "__b"]),
        ("ab*", ["_", "__", "__a", "__b"]),
        ("abc*", ["_", "__", "__a", "__b"]),
    ],
)
def test_a_deny_refuses_the_prefixes_whose_names_it_matches(denied: str, admitted: list[str]) -> None:
    """A deny refuses a prefix if it matches one of its names; internal names have prefixes of their own."""
    acls = [acl(Effect.ALLOW, "*"), acl(Effect.ALLOW, "__*"), acl(Effect.DENY, denied)]
    rules = CallerRules(AclIndex(acls), Caller(principal="user:ann"), ())
    prefixes = ("", "_", "a", "__", "__a", "__b")

    assert [each for each in prefixes if rules.allows_all(Operation.READ, Kind.TOPIC, each)] == admitted
