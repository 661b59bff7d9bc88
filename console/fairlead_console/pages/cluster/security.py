"""Security of the cluster: principals, access rules with a check, quotas with their use, the audit log."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead.errors import FixError
from fairlead_api.access_needs import SINGLE_KINDS, Kind, Operation
from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_api.bodies.security import AclDescription, CheckAnswer, TokenDescription
from fairlead_console.access import Access
from fairlead_console.page import page

router = APIRouter()
AUDIT_TOPIC: Final = "__audit"


@dataclass(slots=True)
class Principal:
    """A principal with its tokens and rules."""

    name: str
    tokens: list[TokenDescription] = field(default_factory=list)
    rules: list[AclDescription] = field(default_factory=list)


@router.get("/security")
async def show(
    request: Request,
    access: Access,
    principal: Annotated[str, Query(max_length=300)] = "",
    operation: Operation = Operation.READ,
    kind: Kind = Kind.TOPIC,
    name: Annotated[str, Query(max_length=300)] = "",
) -> HTMLResponse:
    """Show the security of the cluster, and whether a principal may do something."""
    admin = access.admin
    status, tokens, rules = await admin.security_status(), await admin.tokens(), await admin.acls()
    quotas = await admin.quotas(usage=True)
    answer: CheckAnswer | None = None
    error: FixError | None = None
    if principal:
        resource = "*" if kind in SINGLE_KINDS else name
        try:
            answer = await admin.check_access(principal, operation, kind, resource)
        except FixError as refused:
            error = refused
    picture = await access.observer.picture()
    return await page(
        request,
        "security/security.html",
        title="Security",
        access=access,
        status=200 if error is None else error.status,
        security=status,
        principals=_principals(tokens, rules),
        rules=sorted(rules, key=lambda each: (each.kind, each.pattern, each.principal)),
        quotas=[(each, _uses(each)) for each in quotas],
        audit=AUDIT_TOPIC if AUDIT_TOPIC in picture.topics else None,
        asked={"principal": principal, "operation": operation.value, "kind": kind.value, "name": name},
        operations=[(each.value, each.value) for each in Operation],
        kinds=[(each.value, each.value) for each in Kind],
        answer=answer,
        error=error,
        command_line=shlex.join(
            ["fairlead", "acl", "check", principal, operation.value, f"{kind.value}:{name}"]
        ),
    )


def _principals(tokens: Iterable[TokenDescription], rules: Iterable[AclDescription]) -> list[Principal]:
    found: dict[str, Principal] = {}
    for token in tokens:
        found.setdefault(token.principal, Principal(token.principal)).tokens.append(token)
    for rule in rules:
        found.setdefault(rule.principal, Principal(rule.principal)).rules.append(rule)
    return [found[name] for name in sorted(found)]


def _uses(quota: QuotaDescription) -> list[tuple[str, str, int, float | None]]:
    """Return the limits of a quota with their use: kind of limit, name, value, and the highest use of a principal."""
    used: dict[tuple[bool, str], float] = defaultdict(float)
    for use in quota.usage or ():
        place = (use.principal is None, use.limit)
        used[place] = max(used[place], use.per_second)
    return [
        (kind, limit, value, used.get((kind == "shared", limit)))
        for kind, limits in (("each", quota.each), ("shared", quota.shared))
        for limit, value in limits.items()
    ]
