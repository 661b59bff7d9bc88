"""Search for ACLs with mutated texts that are stored although a rule forbids them, or that match anything unexpected.

Used by `access_searches.py`. The principal and the pattern of a valid ACL are mutated. The body of `POST /v1/acls` with
these texts must be refused with the right problem, or pass as a record through the store's encoding into the index,
whose decisions about similar names must equal those of a naive walk. The expected outcome is computed character by
character from the rules of the contract (rules Z5 and Z6), without the regular expressions of the product.
"""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from typing import Any, Final

from access_kit import PATTERNS, PRINCIPAL_PATTERNS, naive
from fairlead_api.access_needs import SINGLE_KINDS, Kind, Operation
from fairlead_api.bodies.json_bodies import decode_request
from fairlead_api.bodies.security import AclRequest
from fairlead_api.identifiers import TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import AclIndex
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.decision import CallerRules
from fairlead_broker.registry.records import decode, encode
from fairlead_broker.registry.security_records import AclRecord
from fairlead_broker.runtime.security_view import acl_of

LENGTH_MAX: Final = 249
NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
PIECES: Final = (
    "*", "**", "_", "__", ".", "..", "-", ":", " ", ",", "\t", "\n", "\r\n", "\x00", "\x7f", "\x1f", "/", "%2a", "%5F",
    "\\", '"', "'", "|", "?", "[a-z]", "(", "+", "^", "$", "#", "é", "e\u0301", "ß", "\u0130", "\u017f", "\u212a",
    "\uff0a", "\u2217", "\uff1a", "\u200b", "\u202e", "\u2028", "\ufeff", "\U0001f511", "a", "A", "user:", "group:",
    "a" * 120, "b" * 248,
)  # fmt: skip
"""Texts that are inserted: wildcards, separators, control characters, look-alikes of ASCII, and long texts."""
OPERATIONS: Final = (*Operation, "all")
DECISIONS: Final = 4


def is_allowed_principal(text: str) -> bool:
    """Return whether the contract allows a text as the principal of an ACL."""
    start = text.removesuffix("*")
    allowed = all("!" <= character <= "~" and character not in ",*" for character in start)
    return allowed and 1 <= len(text) <= LENGTH_MAX


def is_allowed_pattern(kind: Kind, text: str) -> bool:
    """Return whether the contract allows a text as the pattern of an ACL of a kind."""
    if kind in SINGLE_KINDS:
        return text == "*"
    start = text.removesuffix("*")
    return set(start) <= NAME_CHARACTERS and 1 <= len(text) <= LENGTH_MAX and text not in (".", "..")


def mutated(text: str, chance: random.Random) -> str:
    """Return a text with up to three insertions, removals, replacements or changes of case."""
    for _ in range(chance.randint(0, 3)):
        place = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text = text[:place] + chance.choice(PIECES) + text[place:]
            case 1:
                text = text[:place] + text[place + 1 :]
            case 2:
                text = text[:place] + chance.choice(PIECES) + text[place + 1 :]
            case _:
                text = text[:place] + text[place:].swapcase()
    return text


def similar(pattern: str, chance: random.Random) -> str:
    """Return a name that a pattern may or may not match; names never end in a wildcard, but may contain one."""
    start = pattern.removesuffix("*")
    changes = (
        start,
        start + "x",
        start[:-1],
        "x" + start,
        "_" + start,
        "__" + start,
        start.swapcase(),
        mutated(start, chance),
    )
    return chance.choice(changes) or "x"


def acl_texts(count: int, chance: random.Random, counts: Counter[str]) -> dict[str, Any] | None:
    """Try ACLs with mutated texts; return the first ACL with an unexpected outcome."""
    for number in range(count):
        kind = chance.choice(tuple(Kind))
        principal = mutated(chance.choice(PRINCIPAL_PATTERNS), chance)
        valid = "*" if kind in SINGLE_KINDS else chance.choice(PATTERNS)
        pattern = mutated(valid, chance) if chance.random() < 0.7 else valid
        document = {
            "effect": chance.choice(("allow", "deny")),
            "principal": principal,
            "operations": chance.sample(OPERATIONS, chance.randint(1, 2)),
            "kind": kind,
            "pattern": pattern,
        }
        fault = (
            "invalid_principal"
            if not is_allowed_principal(principal)
            else "invalid_acl"
            if not is_allowed_pattern(kind, pattern)
            else None
        )
        try:
            request = decode_request(AclRequest, json.dumps(document).encode())
        except ProblemError as problem:
            counts[problem.code] += 1
            if problem.code != fault:
                return {"acl": number, "request": document, "answer": problem.to_document()}
            continue
        counts["accepted"] += 1
        if fault is not None or (request.principal, request.pattern) != (principal, pattern):
            return {"acl": number, "request": document, "answer": "accepted"}
        wrong = _wrong_decision(request, chance, counts)
        if wrong is not None:
            return {"acl": number, "request": document, **wrong}
    return None


def _wrong_decision(
    request: AclRequest, chance: random.Random, counts: Counter[str]
) -> dict[str, Any] | None:
    """Return a decision that differs from the naive one. An allow of everything shows what a deny matches."""
    record = AclRecord(
        effect=request.effect,
        principal=request.principal,
        operations=request.operations,
        kind=request.kind,
        pattern=request.pattern,
        created_us=TimestampUs(1),
        created_by="user:admin",
    )
    acls = [acl_of(decode("acl", encode(record), AclRecord))]
    if request.effect == "deny":
        acls += [
            acl_of(AclRecord(effect="allow", principal="*", operations=("all",), kind=request.kind, pattern=each,
                             created_us=TimestampUs(1), created_by="user:admin"))
            for each in ("*", "__*")
        ]  # fmt: skip
    index = AclIndex(acls)
    for _ in range(DECISIONS):
        names = [similar(request.principal, chance) for _ in range(chance.randint(1, 2))]
        caller = Caller(principal=names[0], groups=tuple(names[1:]))
        single = request.kind in SINGLE_KINDS
        name = "*" if single else similar(request.pattern, chance)
        operation = chance.choice(tuple(Operation))
        decision = CallerRules(index, caller, ()).decide(operation, request.kind, name)
        counts["allowed" if decision.allowed else "denied"] += 1
        if decision.allowed is not naive(acls, caller, (), operation, request.kind, name):
            return {"caller": names, "asked": [operation, request.kind, name], "allowed": decision.allowed}
    return None
