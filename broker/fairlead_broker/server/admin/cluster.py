"""Admin calls about the cluster: versions, brokers, metadata.

Callers: ``application`` for the routes named in ``endpoints``.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.metadata import (
    ClusterDescription,
    Metadata,
    Page,
    PartitionMetadata,
    TopicHandOver,
    TopicMetadata,
    Versions,
)
from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_api.versions import API_VERSIONS, BATCH_FORMATS, CODECS
from fairlead_broker.controller.election import in_sync_brokers
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration, PartitionRecord, Replica
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.server.admin.entity_tags import entity_tag, is_answered, names_of_caller, tag_headers
from fairlead_broker.server.http.call import Call, Endpoint
from fairlead_broker.server.http.paging import page


class ClusterCalls:
    """Endpoints of the calls about the cluster as a whole."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "versions": self.versions,
            "describe_cluster": self.describe_cluster,
            "list_brokers": self.list_brokers,
            "metadata": self.metadata,
        }

    async def versions(self, call: Call) -> None:
        """``GET /v1/versions``."""
        # A caller without any rights gets only the supported protocol versions, and no information about the cluster.
        shown = not call.access.is_stranger
        await call.answer_json(
            Versions(
                release=self._broker.release if shown else "",
                api=list(API_VERSIONS),
                batch_formats=list(BATCH_FORMATS),
                codecs=list(CODECS),
                cluster_id=self._broker.entry.cluster.cluster_id if shown else "",
                cluster=self._broker.settings.cluster if shown else "",
                feature_level=self._broker.feature_level if shown else 0,
            )
        )

    async def describe_cluster(self, call: Call) -> None:
        """``GET /v1/cluster``."""
        await call.answer_json(
            ClusterDescription(
                cluster_id=self._broker.entry.cluster.cluster_id,
                cluster=self._broker.settings.cluster,
                controller=self._broker.peer_side.controller,
                brokers=self._broker.known_brokers(call.caller_side),
            )
        )

    async def list_brokers(self, call: Call) -> None:
        """``GET /v1/brokers``, sorted by id, including brokers that are not running."""
        chosen, following = page(
            self._broker.known_brokers(call.caller_side),
            lambda broker: f"{broker.id:010d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def metadata(self, call: Call) -> None:
        """``GET /v1/metadata``: 304 when the caller's copy (If-None-Match) is current."""
        names = call.query.names("topics")
        access = call.access
        for name in names or ():
            access.require(Operation.DESCRIBE, Kind.TOPIC, name)
        views = (
            [view for view in self._broker.views.all() if access.sees(Kind.TOPIC, view.name)]
            if names is None
            else [self._broker.views.by_name(name) for name in names]
        )
        side = call.caller_side
        tag = entity_tag(
            self._broker,
            "" if names is None else ",".join(sorted(names)),
            names_of_caller(call),
            side.called or ("tls" if side.scheme == "https" else ""),
        )
        if await is_answered(call, tag):
            return
        await call.answer_json(
            Metadata(
                cluster_id=self._broker.entry.cluster.cluster_id,
                controller=self._broker.peer_side.controller,
                brokers=self._broker.brokers(call.caller_side),
                topics=[topic_metadata(view, self._broker.peer_side.registrations) for view in views],
            ),
            headers=tag_headers(call, tag),
        )


def topic_metadata(
    view: TopicView, registrations: Mapping[BrokerId, Versioned[BrokerRegistration]]
) -> TopicMetadata:
    """Return the leaders and replicas of a topic's partitions."""
    return TopicMetadata(
        name=view.name,
        topic_id=view.topic_id,
        partitions=[
            partition_metadata(index, view.partitions.get(PartitionIndex(index)), registrations)
            for index in range(view.partition_count)
        ],
        is_mirror=view.mirror is not None,
        handed_over=topic_hand_over(view),
    )


def topic_hand_over(view: TopicView) -> TopicHandOver | None:
    """Return the cluster that accepts a topic's records, if the topic was handed over."""
    found = view.handed_over
    return (
        None if found is None else TopicHandOver(cluster_id=found.cluster_id, bootstrap=list(found.bootstrap))
    )


def partition_metadata(
    index: int,
    record: PartitionRecord | None,
    registrations: Mapping[BrokerId, Versioned[BrokerRegistration]],
) -> PartitionMetadata:
    """Return the leader and replicas of a partition; both are missing while the topic is being created.

    Partitions without replicas are listed as well. A producer that knew only some partitions of a topic would assign
    keys differently once it knows all partitions.
    """
    if record is None:
        return PartitionMetadata(
            partition=index, leader=None, leader_epoch=0, replicas=[], isr=[], elr=[], offline=[]
        )
    return PartitionMetadata(
        partition=index,
        leader=None if record.leader is None else record.leader.broker,
        leader_epoch=record.leader_epoch,
        replicas=[replica.broker for replica in record.replicas],
        isr=list(in_sync_brokers(record, registrations)),
        elr=[member.broker for member in record.elr],
        offline=[replica.broker for replica in record.replicas if _is_offline(replica, registrations)],
        adding=list(record.adding),
        removing=list(record.removing),
        min_isr=record.min_isr,
        voters=[] if record.quorum is None else [voter.broker for voter in record.quorum.voters],
        write=None if record.quorum is None else record.quorum.write,
    )


def _is_offline(replica: Replica, registrations: Mapping[BrokerId, Versioned[BrokerRegistration]]) -> bool:
    """Return whether the broker of a replica is not registered, or the replica's directory is not healthy."""
    registered = registrations.get(replica.broker)
    if registered is None:
        return True
    # A replica without an assigned directory is not offline.
    return bool(replica.directory) and all(
        directory.id != replica.directory for directory in registered.value.directories
    )
