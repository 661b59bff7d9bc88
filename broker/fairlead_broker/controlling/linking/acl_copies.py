"""Copies of the source's ACLs on mirrors and copied groups, made by the controller (rule L10)."""

from __future__ import annotations

import msgspec

from fairlead_api.access_needs import Kind
from fairlead_api.bodies.group_answers import GroupListing
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.security import AclDescription, AclRequest
from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import Acl, Effect
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.linking.link_admin import LinkAdmin
from fairlead_broker.controlling.security import SecurityAdmin
from fairlead_broker.links.acl_copies import CopiedNames, changes_of, copies_of, link_of, owner_of
from fairlead_broker.links.selection import is_chosen
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.security_records import AclRecord
from fairlead_broker.sources.source_cluster import SourceUnreachable
from fairlead_broker.sources.sources import Sources

_COPIED_KINDS = (Kind.TOPIC, Kind.GROUP)


class AclCopies:
    """Copier of ACLs."""

    def __init__(
        self,
        admin: LinkAdmin,
        sources: Sources,
        security: SecurityAdmin,
        metadata: ClusterMetadata,
        clock: Clock,
    ) -> None:
        self._admin = admin
        self._sources = sources
        self._security = security
        self._metadata = metadata
        self._clock = clock

    async def copy(self, link: str) -> None:
        """Make the ACLs that a link owns equal to those of its source.

        Raises `SourceUnreachable`, and a `ProblemError` for a refusal by the source or by this cluster.
        """
        record = self._admin.required(link).value
        if not record.acls:
            return
        source = await self._sources.checked(link, record)
        found = [
            _acl_of(each)
            for each in await source.items("/v1/acls", Page[AclDescription])
            if each.kind in _COPIED_KINDS
        ]
        groups = []
        if record.groups.include:
            listed = await source.items("/v1/groups", GroupListing)
            groups = [each.group for each in listed if is_chosen(record.groups, each.group)]
        mirrors = self._admin.mirrors(link)
        topics = {
            topic.value.mirror.source_name: name
            for name, topic in mirrors.items()
            if topic.value.mirror is not None
        }
        owner = owner_of(link)
        stored = self._metadata.acls
        changes = changes_of(
            copies_of(found, CopiedNames(topics, groups)),
            [_rule(each.value) for each in stored.values() if each.value.owner == owner],
            stored.keys(),
            self._metadata.topics.keys() - mirrors.keys(),
        )
        for acl_id in changes.released:
            await self._security.release_acl(acl_id)
        for acl in changes.created:
            await self._security.put_acl(acl, self._record(acl, owner))
        for acl_id in changes.removed:
            await self._security.remove_acl(acl_id, force=True)

    async def release(self) -> None:
        """Release the copies of links that were deleted or no longer copy ACLs; the ACLs stay."""
        links = self._metadata.links
        for acl_id, acl in list(self._metadata.acls.items()):
            link = link_of(acl.value.owner)
            if link is not None and (link not in links or not links[link].value.acls):
                await self._security.release_acl(acl_id)

    def _record(self, acl: Acl, owner: str) -> AclRecord:
        return AclRecord(
            effect=acl.effect.value,
            principal=acl.principal,
            operations=tuple(sorted(acl.operations)),
            kind=acl.kind,
            pattern=acl.pattern,
            created_us=self._clock.now_us(),
            created_by=owner,
            owner=owner,
        )


def _acl_of(found: AclDescription) -> Acl:
    """Return an ACL of the source after the checks that this cluster's own ACLs undergo."""
    try:
        fields = {name: getattr(found, name) for name in AclRequest.__struct_fields__ if name != "owner"}
        request = msgspec.convert(fields, AclRequest)
    except (msgspec.ValidationError, ProblemError) as error:
        msg = f"the source sent an ACL that cannot be read: {error}"
        raise SourceUnreachable(msg) from error
    return _rule(request)


def _rule(stated: AclRequest | AclRecord) -> Acl:
    return Acl(
        effect=Effect(stated.effect),
        principal=stated.principal,
        operations=frozenset(stated.operations),
        kind=stated.kind,
        pattern=stated.pattern,
    )
