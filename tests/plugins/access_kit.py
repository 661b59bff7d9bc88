"""Random ACLs, callers and names, a decision that applies the contract's rules one by one, and subscriptions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from fairlead_api.access_needs import SINGLE_KINDS, SINGLE_NAME, Kind, Operation
from fairlead_api.identifiers import TopicId
from fairlead_broker.access.acl_index import Acl, Effect
from fairlead_broker.access.caller import Caller
from fairlead_broker.groups.subscriptions import SubscribedTopics, TopicShape

NAMES: Final = ("a", "ab", "abc", "b", "__a", "__ab", "x.y")
PREFIXES: Final = ("", "a", "ab", "__a", "x.")
SUBSCRIBED: Final = (
    ".*", "_.*", "__.*", "__?a.*", "_+a.*", "[_a]*", "(__)?a.*", "__a.*|b", "__a.*", "_?_a.*", "a.*", "ab?", r"x\..*",
    "^__ab$",
)  # fmt: skip
"""Patterns by which group members may subscribe."""
LETTERS: Final = "ab._"
"""Characters of random names; few characters make names that are prefixes of each other frequent."""
SOURCES: Final = ("user:", "k8s:shop:", "k8s:", "group:corp:", "broker:", "cert:")
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


def assigned(pattern: str, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics that a group assigns to a member with a subscription pattern."""
    subscribed = SubscribedTopics()
    subscribed.learn({name: TopicShape(TopicId(name), 1) for name in topics})
    return subscribed.resolve((), pattern)


def some_name(chance: random.Random) -> str:
    """Return a name of the list, or a random short name."""
    if chance.random() < 0.5:
        return chance.choice(NAMES)
    return "".join(chance.choices(LETTERS, k=chance.randint(1, 4)))


def some_principal(chance: random.Random) -> str:
    """Return a principal or group of the list, or a random one."""
    if chance.random() < 0.5:
        return chance.choice(PRINCIPALS)
    return chance.choice(SOURCES) + some_name(chance)


def _prefix_of(text: str, chance: random.Random) -> str:
    return text[: chance.randint(0, len(text))] + "*"


def some_acls(chance: random.Random) -> list[Acl]:
    """Return a few random ACLs of all kinds; two thirds have the same kind, so that they decide together."""
    main = chance.choice(tuple(Kind))
    return [
        _some_acl(chance, main if chance.random() < 0.66 else chance.choice(tuple(Kind)))
        for _ in range(chance.randint(0, 6))
    ]


def _some_acl(chance: random.Random, kind: Kind) -> Acl:
    listed = chance.random() < 0.5
    name, principal = some_name(chance), some_principal(chance)
    if listed:
        pattern, who = chance.choice(PATTERNS), chance.choice(PRINCIPAL_PATTERNS)
    else:
        pattern, who = (
            _prefix_of(each, chance) if chance.random() < 0.5 else each for each in (name, principal)
        )
    return Acl(
        effect=chance.choice(tuple(Effect)),
        principal=who,
        operations=frozenset(chance.sample(WORDS, chance.randint(1, 3))),
        kind=kind,
        pattern=SINGLE_NAME if kind in SINGLE_KINDS else pattern,
    )


def asked_kind(acls: list[Acl], chance: random.Random) -> Kind:
    """Return the kind of one of the ACLs, or any kind."""
    return chance.choice(acls).kind if acls and chance.random() < 0.8 else chance.choice(tuple(Kind))


def some_caller(chance: random.Random) -> Caller:
    """Return a random caller with up to two groups."""
    if chance.random() < 0.5:
        known: tuple[str, ...] = ("group:corp:pay",) if chance.random() < 0.5 else ()
        return Caller(principal=chance.choice(PRINCIPALS[:-1]), groups=known)
    groups = tuple("group:corp:" + some_name(chance) for _ in range(chance.randint(0, 2)))
    return Caller(principal=some_principal(chance), groups=groups)
