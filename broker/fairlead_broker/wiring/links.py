"""The components of a broker that keep links: their connections, the controller's keeper, and the fetchers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.controlling.linking.acl_copies import AclCopies
from fairlead_broker.controlling.linking.link_admin import LinkAdmin
from fairlead_broker.controlling.linking.link_keeper import LinkKeeper
from fairlead_broker.controlling.linking.promotions import Promotions
from fairlead_broker.controlling.security import SecurityAdmin
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime.leading.mirror_copies import MirrorCopies
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.linking.group_copies import GroupCopies
from fairlead_broker.runtime.linking.link_fetcher import CopyParts
from fairlead_broker.runtime.linking.link_meters import LinkMeters
from fairlead_broker.runtime.linking.link_rates import LinkRates
from fairlead_broker.runtime.linking.links import Links, mirror_ends
from fairlead_broker.runtime.linking.mirror_fetching import MirrorFetching
from fairlead_broker.runtime.linking.mirror_records import MirrorRecords
from fairlead_broker.sources.sources import Sources
from fairlead_broker.wiring.calls import CallParts
from fairlead_broker.wiring.engine import Engine
from fairlead_broker.wiring.replicas import ReplicaParts
from fairlead_broker.wiring.security import SecurityParts


@dataclass(slots=True)
class LinkParts:
    """Components that keep links."""

    links: Links
    keeper: LinkKeeper
    fetching: MirrorFetching
    sources: Sources
    tasks: list[asyncio.Task[None]]

    def spawn(self, engine: Engine) -> None:
        """Start the tasks of links."""
        self.tasks += [
            engine.supervisor.spawn(self.keeper.run(), "links"),
            engine.supervisor.spawn(self.fetching.run(), "mirrors"),
        ]

    async def stop(self) -> None:
        """End the tasks of links before the replicas close, and close the connections to the sources."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self.sources.close()


def build_links(
    engine: Engine, entry: Entry, parts: ReplicaParts, calls: CallParts, security: SecurityParts
) -> LinkParts:
    """Build the components that keep links."""
    sources = Sources(engine.settings.link_credentials)
    meters = LinkMeters(engine.telemetry)
    metadata, positions = entry.mirror.metadata, parts.peers.positions

    def term() -> ControllerTerm | None:
        return calls.controllership.term

    admin = LinkAdmin(entry.coordination, entry.mirror, term, engine.clock, sources)
    groups = GroupCopies(
        admin, sources, calls.groups, positions, parts.peers.peer_side.peers, meters.groups_copied, engine.log
    )
    promotions = Promotions(
        entry.coordination,
        entry.mirror,
        term,
        partial(mirror_ends, positions),
        partial(_addresses, metadata),
        groups.committing,
        engine.clock,
        meters.promoted,
    )
    keeper = LinkKeeper(
        entry.mirror,
        term,
        calls.topic_admin,
        admin,
        promotions,
        sources,
        groups.copy,
        AclCopies(admin, sources, SecurityAdmin(entry.coordination, entry.mirror), metadata, engine.clock),
        engine.clock,
        meters.report,
    )
    rates = LinkRates(lambda: len(metadata.brokers), engine.clock.monotonic)
    security.quota_exchange.include(rates)
    copy = CopyParts(
        sources=sources,
        replicas=parts.replicas,
        copies=MirrorCopies(parts.disk.shared),
        records=MirrorRecords(entry.coordination, entry.mirror, entry.incarnation),
        rates=rates,
        pool=engine.validation,
        clock=engine.clock,
        decompressed_bytes_max=engine.settings.limits.decompressed_bytes_max,
        count=meters.copied,
        count_failure=meters.failed,
        log=engine.log,
    )
    links = Links(admin, keeper, positions, parts.peers.reports, metadata, engine.clock)
    return LinkParts(links, keeper, MirrorFetching(entry.mirror, copy, meters), sources, [])


def _addresses(metadata: ClusterMetadata) -> list[str]:
    """Return the base URLs of this cluster that are given to clients of a source when the source is handed over."""
    urls = []
    for broker in metadata.brokers.values():
        addresses = broker.value.addresses
        url = addresses.external or addresses.data_url("https") or addresses.data_url("http")
        if url:
            urls.append(url)
    return urls
