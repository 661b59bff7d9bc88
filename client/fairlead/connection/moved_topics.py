"""Topics that were handed over to another cluster, whose leaders a producer looks up there.

The metadata cache calls this module, at the request of the producer. The module must not depend on what is sent to the
leaders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.connection.transport import Call, Transport, decoded
from fairlead.errors import FairleadError
from fairlead_api.bodies.metadata import Metadata, TopicMetadata


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Metadata of moved topics, and the addresses of the brokers of each topic's cluster."""

    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Addresses of brokers by topic and broker id; two clusters may use the same broker ids."""


class MovedTopics:
    """Moved topics with the addresses of the clusters that accept their records."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._addresses: dict[str, tuple[str, ...]] = {}
        self.found = Elsewhere()

    @property
    def names(self) -> frozenset[str]:
        """Names of the topics that are followed."""
        return frozenset(self._addresses)

    def follow(self, topic: str, addresses: Iterable[str]) -> bool:
        """Look a topic up at these addresses; return False if this client may not call them.

        A client whose cluster has TLS sends nothing to another cluster without TLS, and a client that reaches only its
        bootstrap addresses reaches no other cluster.
        """
        settings = self._transport.settings
        usable = tuple(
            each.rstrip("/") for each in addresses if not settings.uses_tls or each.startswith("https://")
        )
        if settings.one_address or not usable:
            return False
        self._addresses[topic] = usable
        return True

    def go_back(self, topic: str) -> bool:
        """Look a topic up in the client's own cluster again; return whether the topic was followed."""
        return self._addresses.pop(topic, None) is not None

    async def refresh(self) -> None:
        """Look up the leaders of all moved topics. Topics of a cluster that does not answer have no leader."""
        by_cluster: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for topic, addresses in self._addresses.items():
            by_cluster[addresses].append(topic)
        topics: dict[str, TopicMetadata] = {}
        brokers: dict[str, Mapping[int, str]] = {}
        for addresses, names in by_cluster.items():
            metadata = await self._ask(addresses, names)
            if metadata is None:
                brokers.update({each: {} for each in names})
                continue
            known = {
                each.id: each.address.rstrip("/")
                for each in metadata.brokers
                if each.address is not None
                and (not self._transport.settings.uses_tls or each.address.startswith("https://"))
            }
            topics.update({each.name: each for each in metadata.topics if each.name in names})
            brokers.update(dict.fromkeys(names, known))
        self.found = Elsewhere(topics, brokers)

    async def _ask(self, addresses: Iterable[str], names: Iterable[str]) -> Metadata | None:
        """Return the metadata from the first broker that answers."""
        call = Call(
            method="GET", path="/v1/metadata", subject="metadata", query={"topics": ",".join(sorted(names))}
        )
        for address in addresses:
            try:
                return decoded(await self._transport.send(call, address), Metadata, "metadata")
            except FairleadError:
                # The next refresh asks all addresses again.
                continue
        return None
