"""Topics that were handed over to another cluster, and the cluster in which a client continues with each topic.

A topic is followed once the other cluster accepts its records: until its mirror there is promoted, the mirror may lack
records that the first cluster has. The metadata cache calls this module. The module must not depend on what is sent to
the leaders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.connection.transport import Call, Transport, decoded
from fairlead.errors import FairleadError, TopicNotFoundError
from fairlead_api.bodies.metadata import Metadata, TopicMetadata

Addresses = tuple[str, ...]
"""Addresses of the brokers of a cluster."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Metadata of followed topics, and the addresses of the brokers of each topic's cluster."""

    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Addresses of brokers by topic and broker id; two clusters may use the same broker ids."""


class MovedTopics:
    """Moved topics with the addresses of the clusters that accept their records."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._at: dict[str, Addresses] = {}
        self._announced: dict[str, Addresses] = {}
        """Clusters to which topics are being handed over, and which may not accept the records yet."""
        self._ever_followed: set[str] = set()
        self.found = Elsewhere()

    @property
    def names(self) -> frozenset[str]:
        """Names of the topics that are followed."""
        return frozenset(self._at)

    @property
    def is_announced(self) -> bool:
        """Whether a cluster to which a topic is being handed over has not been asked yet."""
        return bool(self._announced)

    def announce(self, topic: str, addresses: Iterable[str]) -> bool:
        """Follow a topic to these addresses when its records are accepted there; return False if this is not allowed.

        A client whose cluster has TLS sends nothing to another cluster without TLS, and a client that reaches only its
        bootstrap addresses reaches no other cluster.
        """
        settings = self._transport.settings
        usable = tuple(
            each.rstrip("/") for each in addresses if not settings.uses_tls or each.startswith("https://")
        )
        if settings.one_address or not usable:
            return False
        if self._at.get(topic) != usable:
            self._announced[topic] = usable
        return True

    def go_back(self, topic: str, broker: str | None) -> bool:
        """Handle the answer of a broker whose copy of a topic is a mirror; return whether its refused records may wait.

        If the broker belongs to the cluster that is followed, the topic is looked up in the client's own cluster again.
        Further answers to requests that are in flight change nothing: each comes from a cluster that the client has
        already left. The records of a topic that was never followed do not wait.
        """
        followed = self._at.get(topic, ())
        if broker in (*followed, *self.found.addresses.get(topic, {}).values()):
            self._at.pop(topic, None)
        return topic in self._ever_followed or topic in self._announced

    def home_of(self, topics: Iterable[str]) -> Addresses | None:
        """Return the addresses of the other cluster to which all of these topics have moved; None without topics."""
        found = {self._at.get(topic) for topic in topics}
        return found.pop() if len(found) == 1 else None

    async def refresh(self, own: Mapping[str, TopicMetadata]) -> None:
        """Follow the topics that another cluster accepts now, and look up the leaders of all followed topics.

        `own` contains topics as the client's own cluster describes them. Topics of a cluster that does not answer have
        no leader.
        """
        for name, topic in own.items():
            if topic.handed_over is not None and name not in self._at:
                self.announce(name, topic.handed_over.bootstrap)
        await self._follow(own)
        topics: dict[str, TopicMetadata] = {}
        brokers: dict[str, Mapping[int, str]] = {}
        for addresses, names in _by_cluster(self._at).items():
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
        for name, topic in topics.items():
            if topic.handed_over is not None:
                self.announce(name, topic.handed_over.bootstrap)

    async def _follow(self, own: Mapping[str, TopicMetadata]) -> None:
        """Follow the announced topics that their new clusters accept.

        An announcement is checked again only while neither cluster accepts the records: the former cluster may already
        be a mirror of the new cluster, and then no longer names the new cluster.
        """
        known = {**own, **self.found.topics}
        waiting: dict[str, Addresses] = {}
        for addresses, names in _by_cluster(self._announced).items():
            metadata = await self._ask(addresses, names)
            for topic in () if metadata is None else metadata.topics:
                former = known.get(topic.name)
                if topic.name not in names or (former and former.topic_id != topic.topic_id):
                    continue
                if not topic.is_mirror and topic.handed_over is None:
                    self._at[topic.name] = addresses
                    self._ever_followed.add(topic.name)
                elif topic.is_mirror and former and (former.is_mirror or former.handed_over):
                    waiting[topic.name] = addresses
        self._announced = waiting

    async def _ask(self, addresses: Iterable[str], names: Iterable[str]) -> Metadata | None:
        """Return the metadata from the first broker that answers, leaving out topics that do not exist."""
        wanted = set(names)
        for address in addresses:
            while wanted:
                query = {"topics": ",".join(sorted(wanted))}
                call = Call(method="GET", path="/v1/metadata", subject="metadata", query=query)
                try:
                    return decoded(await self._transport.send(call, address), Metadata, "metadata")
                except TopicNotFoundError as error:
                    missing = wanted & {error.data.get("topic")}
                    if not missing:
                        break
                    wanted -= missing
                except FairleadError:
                    # The next refresh asks all addresses again.
                    break
        return None


def _by_cluster(topics: Mapping[str, Addresses]) -> Mapping[Addresses, list[str]]:
    by_cluster: defaultdict[Addresses, list[str]] = defaultdict(list)
    for topic, addresses in topics.items():
        by_cluster[addresses].append(topic)
    return by_cluster
