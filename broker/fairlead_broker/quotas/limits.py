"""Choice of the limits that apply to a caller (rule Q3).

Of the individual limits that match a principal, only the limit of the most specific subject applies: a literal subject
first, then the longest prefix. Every shared limit applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.patterns import ANY, matches
from fairlead_api.principals import ANONYMOUS
from fairlead_api.quota_limits import TOPICS, Limit
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.security_records import QuotaRecord


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of the principals, or of the topics, that a pattern matches."""

    subject: str
    each: Mapping[Limit, int] = field(default_factory=dict)
    shared: Mapping[Limit, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UseKey:
    """Key of a counter: a limit, and one principal or all principals of a subject."""

    subject: str
    limit: Limit
    principal: str | None = None
    """Principal, or address of an anonymous caller; None for a limit that principals share."""


@dataclass(frozen=True, slots=True)
class AppliedLimit:
    """A limit that applies to a caller."""

    key: UseKey
    value: int


BUILT_IN: Final = (
    Quota(ANY, each={Limit.CONCURRENT_REQUESTS: 2000}),
    Quota(ANONYMOUS, each={Limit.REQUESTS: 100}),
)
"""Limits that apply by default. A quota of the same subject replaces each limit that it sets."""


class QuotaTable:
    """All quotas of principals, compiled again after each change."""

    __slots__ = ("_literal", "_prefixes")

    def __init__(self, quotas: Iterable[Quota]) -> None:
        given = {quota.subject: quota for quota in quotas}
        for quota in BUILT_IN:
            own = given.get(quota.subject, Quota(quota.subject))
            given[quota.subject] = Quota(quota.subject, {**quota.each, **own.each}, own.shared)
        of_principals = [quota for subject, quota in given.items() if not subject.startswith(TOPICS)]
        self._literal = {quota.subject: quota for quota in of_principals if not quota.subject.endswith(ANY)}
        self._prefixes = sorted(
            (quota for quota in of_principals if quota.subject.endswith(ANY)),
            key=lambda quota: len(quota.subject),
            reverse=True,
        )

    def of(self, principal: str, name: str | None = None) -> tuple[AppliedLimit, ...]:
        """Return the limits that apply to a principal.

        `name`: name under which the use of each principal is counted, such as the address of an anonymous caller.
        """
        literal = self._literal.get(principal)
        matching = [quota for quota in self._prefixes if matches(quota.subject, principal)]
        if literal is not None:
            matching.insert(0, literal)
        found: dict[Limit, AppliedLimit] = {}
        for quota in reversed(matching):
            for limit, value in quota.each.items():
                found[limit] = AppliedLimit(UseKey(quota.subject, limit, name or principal), value)
        shared = [
            AppliedLimit(UseKey(quota.subject, limit), value)
            for quota in matching
            for limit, value in quota.shared.items()
        ]
        return (*found.values(), *shared)


def quota_of(subject: str, record: QuotaRecord) -> Quota:
    """Return the quota of a record. Limits that this release does not know are left out."""
    known = set(Limit)
    each, shared = (
        {Limit(name): value for name, value in limits.items() if name in known}
        for limits in (record.each, record.shared)
    )
    return Quota(subject, each, shared)


def partition_quotas(quotas: Mapping[str, Versioned[QuotaRecord]], topic: str) -> list[tuple[str, int]]:
    """Return the subjects of the quotas that limit the partitions of a topic, with their limits."""
    return [
        (subject, limit)
        for subject, record in quotas.items()
        if subject.startswith(TOPICS) and matches(subject.removeprefix(TOPICS), topic)
        for limit in (record.value.shared.get(Limit.PARTITIONS),)
        if limit is not None
    ]
