"""Bodies of the calls about quotas (section 3.4 of the security contract)."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta

from fairlead_api.bodies.json_bodies import Request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.security import Owner
from fairlead_api.excerpts import shortened, shown
from fairlead_api.patterns import is_name_pattern
from fairlead_api.principals import is_principal_pattern
from fairlead_api.problems import ProblemError
from fairlead_api.quota_limits import TOPICS, Limit

SUBJECT_BYTES_MAX: Final = 255
"""Maximum number of bytes of a percent-encoded subject."""
GROUP: Final = "group:"
_OF_TOPICS: Final = f"shared.{Limit.PARTITIONS}"
LimitValue = Annotated[int, Meta(ge=1, le=2**53)]


class QuotaLimits(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a quota; null means no limit."""

    produce_bytes_per_second: LimitValue | None = None
    fetch_bytes_per_second: LimitValue | None = None
    requests_per_second: LimitValue | None = None
    concurrent_requests: LimitValue | None = None
    partitions: LimitValue | None = None


class QuotaRequest(Request, frozen=True, kw_only=True):
    """Body of `PUT /v1/quotas/{subject}`: the whole quota."""

    each: QuotaLimits = QuotaLimits()
    shared: QuotaLimits = QuotaLimits()
    owner: Owner | None = None
    """Program that manages the quota."""


class QuotaUse(Answer, frozen=True, kw_only=True):
    """Usage of one limit of a quota, as known to the answering broker."""

    limit: str
    principal: str | None
    """Principal, or address of an anonymous caller; null for a limit that principals share."""
    per_second: float
    """Usage per second in the whole cluster; for `concurrent_requests`, the requests in progress on this broker."""


class QuotaDescription(Answer, frozen=True, kw_only=True):
    """A stored quota."""

    subject: str
    each: dict[str, int]
    shared: dict[str, int]
    changed_at: str
    changed_by: str
    owner: str | None
    usage: list[QuotaUse] | None = None
    """Usage of the limits, present only if the request has `usage=true`."""


class ChangedQuota(QuotaDescription, frozen=True, kw_only=True):
    """Answer to `PUT /v1/quotas/{subject}`."""

    applied_everywhere: bool


def limits_of(limits: QuotaLimits) -> dict[str, int]:
    """Return the limits that are not null, by name."""
    return {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}


def check_quota(subject: str, request: QuotaRequest) -> None:
    """Raise `invalid_quota` for a subject that is not allowed, or limits that it cannot have (rules Q1, Q2)."""
    check_subject(subject)
    each, shared = limits_of(request.each), limits_of(request.shared)
    if not each and not shared:
        raise _invalid("each", "{}", "at least one limit in each or shared")
    if subject.startswith(TOPICS):
        for field, names in (("each", set(each)), ("shared", set(shared) - {Limit.PARTITIONS})):
            if names:
                wrong = f"{field}.{min(names)}"
                raise _invalid(wrong, subject, f"{_OF_TOPICS} for topics")
    elif Limit.PARTITIONS in (*each, *shared):
        raise _invalid(_OF_TOPICS, subject, f"a subject that begins with {TOPICS}")


def check_subject(subject: str) -> None:
    """Raise `invalid_quota` unless a subject is a pattern of principals, or `topics:` and a pattern of topics."""
    if subject.startswith(TOPICS):
        allowed = is_name_pattern(subject.removeprefix(TOPICS))
    else:
        allowed = is_principal_pattern(subject) and not subject.startswith(GROUP)
    if not allowed or len(quote(subject, safe="")) > SUBJECT_BYTES_MAX:
        raise _invalid(
            "subject",
            subject,
            f"a principal, a prefix of principals that ends in '*', or {TOPICS} and a pattern of topics; groups have "
            "no quotas",
        )


def _invalid(field: str, value: str, allowed: str) -> ProblemError:
    return ProblemError(
        "invalid_quota",
        f"{field} of {shown(value)} is not allowed; expected {allowed}",
        data={"field": field, "value": shortened(value), "allowed": allowed},
    )
