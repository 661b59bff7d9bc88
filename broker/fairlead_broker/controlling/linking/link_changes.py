"""Records of new and changed links, made from the requests of operators. `link_admin` writes them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from fairlead_api.bodies.links import (
    AlterLinkRequest,
    AlterNamePatterns,
    CreateLinkRequest,
    check_chosen_topics,
)
from fairlead_api.configuration import merge_patch
from fairlead_api.identifiers import TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.link_records import LinkPolicies, LinkRecord, LinkSource, NamePatterns
from fairlead_broker.registry.records import config_texts


def new_link(request: CreateLinkRequest, source: LinkSource, now_us: TimestampUs) -> LinkRecord:
    """Return the record of a new link. `source`: the source with the id of its cluster."""
    return LinkRecord(
        source=source,
        topics=NamePatterns(include=tuple(request.topics.include), exclude=tuple(request.topics.exclude)),
        groups=NamePatterns(include=tuple(request.groups.include), exclude=tuple(request.groups.exclude)),
        acls=request.acls,
        prefix=request.prefix,
        config={**merge_patch({}, request.config)},
        replication_factor=request.replication_factor,
        policies=LinkPolicies(
            truncated=request.policies.truncated,
            expired=request.policies.expired,
            recreated=request.policies.recreated,
            log_start=request.policies.log_start,
        ),
        bytes_per_second=request.bytes_per_second,
        created_us=now_us,
        changed_us=now_us,
    )


def altered(request: AlterLinkRequest, source: LinkSource, record: LinkRecord) -> LinkRecord:
    """Return a changed link. `source`: the source with the addresses that were checked. Raises `invalid_link`."""
    policies, limit, factor = request.policies, request.bytes_per_second, request.replication_factor
    topics = _altered_patterns(request.topics, record.topics)
    check_chosen_topics(topics.include)
    return msgspec.structs.replace(
        record,
        source=source,
        topics=topics,
        groups=_altered_patterns(request.groups, record.groups),
        acls=record.acls if request.acls is UNSET else request.acls,
        config={**merge_patch(config_texts(record.config), request.config)},
        replication_factor=record.replication_factor if factor is UNSET else factor,
        policies=LinkPolicies(
            truncated=policies.truncated or record.policies.truncated,
            expired=policies.expired or record.policies.expired,
            recreated=policies.recreated or record.policies.recreated,
            log_start=policies.log_start or record.policies.log_start,
        ),
        bytes_per_second=record.bytes_per_second if limit is UNSET else limit,
    )


def _altered_patterns(request: AlterNamePatterns, patterns: NamePatterns) -> NamePatterns:
    include, exclude = request.include, request.exclude
    return NamePatterns(
        include=patterns.include if include is UNSET else tuple(include),
        exclude=patterns.exclude if exclude is UNSET else tuple(exclude),
    )


def same_link(name: str, existing: LinkRecord, wanted: LinkRecord) -> LinkRecord:
    """Return the existing link. Raises `link_exists` if its specification differs from the requested specification."""
    comparable = msgspec.structs.replace(
        wanted,
        created_us=existing.created_us,
        changed_us=existing.changed_us,
        state=existing.state,
        acknowledgements=existing.acknowledgements,
    )
    if comparable != existing:
        differing = [
            field
            for field in LinkRecord.__struct_fields__
            if getattr(comparable, field) != getattr(existing, field)
        ]
        detail = f"link {name} exists with other values of {', '.join(differing)}"
        raise ProblemError("link_exists", detail, data={"link": name})
    return existing
