"""Plan of a Link: the difference between the resource and the link that the brokers have.

`reconcile.link` calls this module with the brokers' answers. The module does no I/O. A link that exists already, for
instance because an operator created it by a command, is changed to match the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from msgspec import UNSET

from fairlead_api.bodies import links as bodies
from fairlead_api.bodies.links import (
    AlterLinkPolicies,
    AlterLinkRequest,
    AlterNamePatterns,
    CreateLinkRequest,
    LinkDescription,
    LinkTopic,
)
from fairlead_api.configuration import stored_value
from fairlead_api.patterns import matches
from fairlead_api.problems import ProblemError
from fairlead_api.resources.link import Link, LinkPatterns
from fairlead_api.resources.quantities import quantity
from fairlead_operator.plan.findings import Finding

State = Literal["running", "paused"]

PROMOTABLE: Final = ("mirroring", "faulted")
"""States of a mirror whose promotion has not begun."""
PROMOTING: Final = ("handing_over", "promoting")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """Changes to the link, in the order in which they are made."""

    create: CreateLinkRequest | None = None
    alter: AlterLinkRequest | None = None
    """Members that differ; None if the link matches the resource."""
    state: State | None = None
    """State to set; None if the link has the state."""
    conflict: Finding | None = None
    """Reason why the link cannot match the resource."""


def wanted_link(link: Link) -> CreateLinkRequest:
    """Return the request for the link of a resource. Raises `ProblemError` for values that the API refuses."""
    spec = link.spec
    return CreateLinkRequest(
        name=link.name,
        source=bodies.LinkSource(bootstrap=list(spec.source.bootstrap)),
        topics=_patterns(spec.topics),
        groups=_patterns(spec.groups),
        acls=spec.acls,
        prefix=spec.prefix or "",
        config={key: _canonical(key, value) for key, value in spec.config.items()},
        replication_factor=spec.replication_factor,
        policies=bodies.LinkPolicies(
            truncated="stop" if spec.policies.truncated == "Stop" else "follow",
            expired="stop" if spec.policies.expired == "Stop" else "skip",
            recreated="replace" if spec.policies.recreated == "Replace" else "stop",
            log_start="own" if spec.policies.log_start == "Own" else "source",
        ),
        bytes_per_second=None
        if spec.bytes_per_second is None
        else max(1, int(quantity(spec.bytes_per_second))),
    )


def plan_link(link: Link, live: LinkDescription | None) -> LinkPlan:
    """Return the changes to the link of a resource; `live` is None if the link does not exist.

    Raises `ProblemError` for values that the API refuses.
    """
    wanted = wanted_link(link)
    state = cast("State", link.spec.state.lower())
    if live is None:
        return LinkPlan(create=wanted, state=None if state == "running" else state)
    if live.prefix != wanted.prefix:
        message = f"link {link.name} exists with the prefix {live.prefix or 'of no character'}"
        return LinkPlan(conflict=Finding("LinkConflict", message))
    alter = _changes(wanted, live)
    return LinkPlan(
        alter=None if alter == AlterLinkRequest() else alter, state=None if live.state == state else state
    )


def to_promote(link: Link, topics: Iterable[LinkTopic]) -> list[str]:
    """Return the mirrors whose promotion must begin.

    A mirror whose hand-over waits for a source that does not return is promoted again by a failover.
    """
    promote = link.spec.promote
    if promote is None:
        return []
    begins = (*PROMOTABLE, "handing_over") if promote.mode == "Failover" else PROMOTABLE
    return sorted(each.topic for each in topics if each.state in begins and is_promoted(link, each.topic))


def is_promoted(link: Link, topic: str) -> bool:
    """Return whether the resource promotes a topic."""
    promote = link.spec.promote
    return promote is not None and any(matches(pattern, topic) for pattern in promote.topics)


def _changes(wanted: CreateLinkRequest, live: LinkDescription) -> AlterLinkRequest:
    config: dict[str, str | None] = dict.fromkeys(live.config.keys() - wanted.config.keys())
    config |= {key: str(value) for key, value in wanted.config.items() if _text(live.config, key) != value}
    factor, limit = wanted.replication_factor, wanted.bytes_per_second
    return AlterLinkRequest(
        source=UNSET if wanted.source == live.source else wanted.source,
        topics=_changed_patterns(wanted.topics, live.topics),
        groups=_changed_patterns(wanted.groups, live.groups),
        acls=UNSET if wanted.acls == live.acls else wanted.acls,
        config={**config},
        replication_factor=UNSET if factor == live.replication_factor else factor,
        policies=AlterLinkPolicies(
            truncated=UNSET
            if wanted.policies.truncated == live.policies.truncated
            else wanted.policies.truncated,
            expired=UNSET if wanted.policies.expired == live.policies.expired else wanted.policies.expired,
            recreated=UNSET
            if wanted.policies.recreated == live.policies.recreated
            else wanted.policies.recreated,
            log_start=UNSET
            if wanted.policies.log_start == live.policies.log_start
            else wanted.policies.log_start,
        ),
        bytes_per_second=UNSET if limit == live.bytes_per_second else limit,
    )


def _changed_patterns(wanted: bodies.NamePatterns, live: bodies.NamePatterns) -> AlterNamePatterns:
    return AlterNamePatterns(
        include=UNSET if wanted.include == live.include else wanted.include,
        exclude=UNSET if wanted.exclude == live.exclude else wanted.exclude,
    )


def _patterns(patterns: LinkPatterns) -> bodies.NamePatterns:
    return bodies.NamePatterns(include=list(patterns.include), exclude=list(patterns.exclude))


def _canonical(key: str, value: str) -> str:
    """Return a value in the stored form; a value that the brokers refuse stays as it is."""
    try:
        return stored_value(key, value)
    except ProblemError:
        return value


def _text(config: Mapping[str, object], key: str) -> str | None:
    return None if key not in config else str(config[key])
