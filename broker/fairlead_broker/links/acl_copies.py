"""Choice of the ACLs of a source that a link copies, and of the changes that make the copies equal (rule L10).

An ACL of the source may cover many names. The copies name each mirror and each copied group, so that they never decide
about another topic or group of this cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fairlead_api.access_needs import Kind
from fairlead_api.patterns import matches
from fairlead_broker.access.acl_index import Acl, Effect

OWNER_PREFIX = "link/"


@dataclass(frozen=True, slots=True)
class CopiedNames:
    """Names in this cluster by their names in the source."""

    topics: Mapping[str, str]
    groups: Collection[str]
    """Groups whose offsets are copied, which have the same names in both clusters."""


@dataclass(frozen=True, slots=True)
class AclChanges:
    """Changes to the ACLs that a link owns, in the order in which they must be made.

    What an interrupted series of changes allows is never more than before or after the series.
    """

    created: tuple[Acl, ...]
    """New ACLs: the denying ACLs first."""
    removed: tuple[str, ...]
    """Ids of ACLs that the source no longer has: the allowing ACLs first."""
    released: tuple[str, ...]
    """Ids of ACLs of topics that are no longer mirrors, which stay and no longer belong to the link."""


def owner_of(link: str) -> str:
    """Return the owner of the ACLs that a link copies."""
    return f"{OWNER_PREFIX}{link}"


def link_of(owner: str | None) -> str | None:
    """Return the link that owns an ACL; None for an ACL with another owner or without an owner."""
    return owner.removeprefix(OWNER_PREFIX) if owner is not None and owner.startswith(OWNER_PREFIX) else None


def copies_of(source: Iterable[Acl], names: CopiedNames) -> list[Acl]:
    """Return the ACLs that a link copies; ACLs of the source on its cluster and its security are never copied."""
    found: dict[str, Acl] = {}
    for acl in source:
        own: Iterable[str] = ()
        if acl.kind is Kind.TOPIC:
            own = [name for there, name in names.topics.items() if matches(acl.pattern, there)]
        elif acl.kind is Kind.GROUP:
            own = [name for name in names.groups if matches(acl.pattern, name)]
        for name in own:
            copy = Acl(
                effect=acl.effect,
                principal=acl.principal,
                operations=acl.operations,
                kind=acl.kind,
                pattern=name,
            )
            found[copy.acl_id] = copy
    return list(found.values())


def changes_of(
    wanted: Iterable[Acl], owned: Iterable[Acl], stored: Collection[str], promoted: Collection[str]
) -> AclChanges:
    """Return the changes after which the link owns exactly the wanted ACLs.

    `owned` are the ACLs of the link, `stored` the ids of all ACLs, and `promoted` topics that exist and are no longer
    mirrors of the link. An ACL that already exists with another owner is left alone.
    """
    by_id = {acl.acl_id: acl for acl in wanted}
    created = [acl for acl_id, acl in by_id.items() if acl_id not in stored]
    old = [acl for acl in owned if acl.acl_id not in by_id]
    released = [acl for acl in old if acl.kind is Kind.TOPIC and acl.pattern in promoted]
    removed = [acl for acl in old if acl not in released]
    return AclChanges(
        created=tuple(sorted(created, key=lambda acl: acl.effect is Effect.ALLOW)),
        removed=tuple(acl.acl_id for acl in sorted(removed, key=lambda acl: acl.effect is Effect.DENY)),
        released=tuple(acl.acl_id for acl in released),
    )
