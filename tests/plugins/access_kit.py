"""Random ACLs, callers and names, and a decision that applies the contract's rules one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from fairlead_api.access_needs import Kind, Operation
from fairlead_broker.access.acl_index import Acl, Effect
from fairlead_broker.access.caller import Caller

NAMES: Final = ("a", "ab", "abc", "b", "__a", "__ab", "x.y")
PREFIXES: Final = ("", "a", "ab", "__a", "x.")
PRINCIPALS: Final = ("user:ann", "user:anna", "k8s:shop:x", "anonymous", "group:corp:pay")
PATTERNS: Final = (*NAMES, "*", "a*", "ab*", "__*", "_*", "__a*", "x.*")
PRINCIPAL_PATTERNS: Final = (*PRINCIPALS, "*", "user:*", "user:ann*", "k8s:*", "group:*")
WORDS: Final = (*Operation, "all")
SUPERUSERS: Final = ((), ("user:anna",), ("user:*",), ("group:corp:*", "k8s:shop:x"), ("*",))


def naive(
    acls: Iterable[Acl], caller: Caller, superusers: Iterable[str], operation: str, kind: Kind, name: str
) -> bool:
    """Decide by applying the contract's sentences one after the other."""

    def is_matched(pattern: str, text: str) -> bool:
        if text[:2] == "__" and pattern[:2] != "__":
            return False
        return text[: len(pattern) - 1] == pattern[:-1] if pattern[-1] == "*" else text == pattern

    def names_caller(pattern: str) -> bool:
        return any(is_matched(pattern, each) for each in (caller.principal, *caller.groups))

    if caller.principal != "anonymous" and any(map(names_caller, superusers)):
        return True
    applying = [
        acl
        for acl in acls
        if acl.kind == kind and names_caller(acl.principal) and is_matched(acl.pattern, name)
    ]
    for acl in applying:
        if acl.effect is Effect.DENY and acl.operations & {operation, "all", "describe"}:
            return False
    for acl in applying:
        if acl.effect is Effect.ALLOW and (operation == "describe" or acl.operations & {operation, "all"}):
            return True
    return False


def some_acls(chance: random.Random) -> list[Acl]:
    """Return a few random ACLs."""
    return [
        Acl(
            effect=chance.choice(tuple(Effect)),
            principal=chance.choice(PRINCIPAL_PATTERNS),
            operations=frozenset(chance.sample(WORDS, chance.randint(1, 3))),
            kind=chance.choice((Kind.TOPIC, Kind.GROUP)),
            pattern=chance.choice(PATTERNS),
        )
        for _ in range(chance.randint(0, 6))
    ]


def some_caller(chance: random.Random) -> Caller:
    """Return a random caller, with or without a group."""
    groups = chance.choice(((), ("group:corp:pay",)))
    return Caller(principal=chance.choice(PRINCIPALS[:-1]), groups=groups)
