"""The public admin client: topics, consumer groups, the cluster, offsets.

    async with Admin("http://127.0.0.1:9520") as admin:
        await admin.create_topic("flights", partitions=6)

Every method makes one HTTP call to any broker, and retries the call after a retryable problem. Calls that change state
are idempotent. Answers are types of the package `fairlead_api`. The module is a single file because it contains a
single class, whose short methods share the paths and the retries at the end of the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import quote

from msgspec import UNSET

from fairlead import admin_paths as paths
from fairlead.connection.metadata import LeaderCalls, MetadataCache, check_name, partition_not_found
from fairlead.connection.transport import Answer, Call, Query, Transport, decoded, json_call
from fairlead.credentials import TokenProvider
from fairlead.errors import (
    BrokerNotFoundError,
    ClusterError,
    GroupNotFoundError,
    NoLeaderError,
    TopicNotFoundError,
    TransactionNotFoundError,
    error_of,
)
from fairlead.group.calls import commit_errors
from fairlead.reading.offsets import OffsetAndTimestamp, OffsetLookup, Position
from fairlead.settings import DEFAULT_BOOTSTRAP, Duration, connection_of, seconds_of
from fairlead.tls_files import FilePath
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.cleaning import PartitionCleaning
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.group_answers import (
    CommitAnswer,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupSummary,
    LagAnswer,
    OffsetsAnswer,
    ResetAnswer,
)
from fairlead_api.bodies.group_requests import (
    CommitRequest,
    OffsetCommit,
    ResetKind,
    ResetPartition,
    ResetRequest,
    ResetTarget,
)
from fairlead_api.bodies.links import (
    AlterLinkRequest,
    Chosen,
    CreateLinkRequest,
    LinkDescription,
    LinkTail,
    LinkTopic,
    PromotionMode,
)
from fairlead_api.bodies.media_types import Header
from fairlead_api.bodies.metadata import (
    BrokerDescription,
    ClusterDescription,
    ConfigDescription,
    Metadata,
    Page,
    PartitionDescription,
    TopicDescription,
    Versions,
)
from fairlead_api.bodies.operations import (
    BrokerReport,
    ElectionKind,
    ElectRequest,
    PartitionDigest,
    PartitionState,
    ReassignmentDescription,
    ReassignRequest,
    RestartPermitAnswer,
    TopicSizes,
)
from fairlead_api.bodies.producers import PartitionProducer
from fairlead_api.bodies.quotas import ChangedQuota, QuotaDescription
from fairlead_api.bodies.requests import (
    HIGH_WATERMARK,
    AcceptDamageAnswer,
    AcceptDamageRequest,
    AlterConfigRequest,
    AlterTopicRequest,
    CreateTopicRequest,
    DeleteRecordsAnswer,
    DeleteRecordsRequest,
    Isolation,
    PartitionOffsets,
)
from fairlead_api.bodies.security import (
    AclDescription,
    Applied,
    CheckAnswer,
    CreatedAcl,
    CreatedToken,
    SecurityStatus,
    TokenDescription,
    WhoAmI,
)
from fairlead_api.bodies.transactions import PartitionTransactions, TransactionDescription
from fairlead_api.configuration import ConfigEntry, ConfigInput
from fairlead_api.problems import ProblemError

T = TypeVar("T")
ResetTo: TypeAlias = Literal["earliest", "latest"] | ResetTarget

TOKEN_LIFE: Final = timedelta(days=90)
"""Default lifetime of a token; a call may set another lifetime, or None for a token that does not expire."""
PAGE_ENTRIES: Final = 1000
"""Number of entries per page of a list: the maximum that brokers allow, so that a long list takes few calls."""


class Admin:
    """Client, opened with `async with`, that manages topics, consumer groups and the cluster."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        request_timeout: Duration = "30s",
        connect_timeout: Duration = "5s",
        retry_timeout: Duration = "30s",
        token: str | None = None,
        token_file: FilePath | None = None,
        token_provider: TokenProvider | None = None,
        allow_insecure_token: bool | None = None,
        ca_file: FilePath | None = None,
        client_cert_file: FilePath | None = None,
        client_key_file: FilePath | None = None,
        one_address: bool | None = None,
    ) -> None:
        connection = connection_of(
            bootstrap, connect=connect_timeout, request=request_timeout, retry=retry_timeout, token=token,
            token_file=token_file, token_provider=token_provider, allow_insecure_token=allow_insecure_token,
            ca_file=ca_file, client_cert_file=client_cert_file, client_key_file=client_key_file,
            one_address=one_address,
        )  # fmt: skip
        self._transport = Transport(connection, "admin")

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, ConfigInput] | None = None,
        dry_run: bool = False,
        wait: bool = True,
    ) -> TopicDescription:
        """Create a topic and, with `wait`, return once every partition has a leader.

        Without `partitions` or `replication_factor` the cluster's default applies (num.partitions,
        default.replication.factor). Creating a topic again with the same specification is not an error; with a
        different specification, `TopicExistsError` is raised. With `dry_run` the request is checked but not executed.
        Raises `InvalidTopicNameError`, `InvalidConfigError`.
        """
        request = CreateTopicRequest(
            name=check_name(name),
            partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
        )
        query = {"dry_run": "true"} if dry_run else None
        subject = f"create topic {name}"
        created = await self._call("POST", "/v1/topics", subject, TopicDescription, body=request, query=query)
        if wait and not dry_run:
            await self._transport.retry(self._check_leaders, created)
        return created

    async def list_topics(self, *, settings: Iterable[str] | None = None) -> list[TopicDescription]:
        """Return every topic, sorted by name, with all its settings or with the given ones."""
        query: dict[str, str] = {} if settings is None else {"config": ",".join(settings)}
        return await self._pages("/v1/topics", "list topics", Page[TopicDescription], query)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with each configuration value and its source. Raises `TopicNotFoundError`."""
        return await self._call("GET", paths.topic(name), f"describe topic {name}", TopicDescription)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, ConfigInput] | None = None,
        topic_id: str | None = None,
    ) -> TopicDescription:
        """Add partitions or change configuration; None resets a key to its default. Raises `InvalidConfigError`.

        `replication_factor` applies to new partitions; existing replicas are moved only by `reassign`. With `topic_id`,
        a topic of the same name with a different id is not changed (`TopicRecreatedError`).
        """
        request = AlterTopicRequest(
            partitions=partitions, replication_factor=replication_factor, config=dict(config or {})
        )
        subject = f"alter topic {name}"
        headers = _topic_id_header(topic_id)
        return await self._call(
            "PATCH", paths.topic(name), subject, TopicDescription, body=request, headers=headers
        )

    async def delete_topic(self, name: str, *, topic_id: str | None = None) -> None:
        """Delete a topic and its records. Raises `TopicNotFoundError`.

        With `topic_id`, a topic of the same name with a different id is not deleted (`TopicRecreatedError`).
        """
        subject, headers = f"delete topic {name}", _topic_id_header(topic_id)
        await self._delete(paths.topic(name), subject, TopicNotFoundError, headers=headers)

    async def cluster(self) -> ClusterDescription:
        """Return the cluster: its id and name, controller and brokers."""
        return await self._call("GET", "/v1/cluster", "describe cluster", ClusterDescription)

    async def brokers(self) -> list[BrokerDescription]:
        """Return every known broker, including stopped brokers that replicas or settings still name."""
        return await self._pages("/v1/brokers", "list brokers", Page[BrokerDescription])

    async def broker_reports(self) -> list[BrokerReport]:
        """Return the disk space and the Kafka listener of each running broker."""
        return await self._pages("/v1/broker-reports", "broker reports", Page[BrokerReport])

    async def versions(self) -> Versions:
        """Return the versions that the answering broker supports."""
        return await self._call("GET", "/v1/versions", "versions", Versions)

    async def metadata(self, topics: Iterable[str] | None = None) -> Metadata:
        """Return leaders and replicas of these topics, or of all topics."""
        query = None if topics is None else {"topics": ",".join(check_name(name) for name in topics)}
        return await self._call("GET", "/v1/metadata", "metadata", Metadata, query=query)

    async def offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """Return the start and end offsets of a partition from its leader."""
        return await self._transport.retry(self._ask_offsets, TopicPartition(topic, partition))

    async def delete_records(self, topic: str, partition: int, before: int | None = None) -> int:
        """Delete the records of a partition below an offset; without an offset, all committed records are deleted.

        Returns the new start offset of the partition, which survives a crash. Raises `OffsetOutOfRangeError` for an
        offset above the high watermark, and deletes nothing.
        """
        place = TopicPartition(topic, partition)
        body = DeleteRecordsRequest(offset=HIGH_WATERMARK if before is None else before)
        answer = await self._transport.retry(
            self._at_leader, place, "delete-records", body, DeleteRecordsAnswer, f"delete records of {place}"
        )
        return answer.low_watermark

    async def accept_damage(
        self, topic: str, partition: int, first_offset: int, next_good_offset: int
    ) -> None:
        """Permanently accept the loss of the records in a damaged range, which readers skip from then on.

        `LogDamagedError` names the range in its `data`. Repeating the call is not an error. Raises `ConflictError` if
        the partition has no damaged range, or only a different damaged range.
        """
        place = TopicPartition(topic, partition)
        body = AcceptDamageRequest(first_offset=first_offset, next_good_offset=next_good_offset)
        await self._transport.retry(
            self._at_leader, place, "accept-damage", body, AcceptDamageAnswer, f"accept the damage of {place}"
        )

    async def _at_leader(
        self, place: TopicPartition, verb: str, body: object, type_: type[T], subject: str
    ) -> T:
        call = json_call("POST", f"{paths.partition(place)}:{verb}", subject, body)
        return decoded(await self._send_to_leader(call, place), type_, subject)

    async def cluster_config(self) -> dict[str, ConfigEntry]:
        """Return every key that can be set on the cluster, with its value and the source of the value."""
        return await self._config("GET", paths.CLUSTER_CONFIG, "describe the cluster's configuration")

    async def alter_cluster_config(self, config: Mapping[str, ConfigInput]) -> dict[str, ConfigEntry]:
        """Change the cluster's configuration; None resets a key to its default. Raises `InvalidConfigError`."""
        return await self._config("PATCH", paths.CLUSTER_CONFIG, "alter the cluster's configuration", config)

    async def broker_config(self, broker: int) -> dict[str, ConfigEntry]:
        """Return every key that can be set on a broker, with its value and source. Raises `BrokerNotFoundError`."""
        return await self._config(
            "GET", paths.broker_config(broker), f"describe the configuration of broker {broker}"
        )

    async def alter_broker_config(
        self, broker: int, config: Mapping[str, ConfigInput]
    ) -> dict[str, ConfigEntry]:
        """Change a broker's configuration.

        None resets a key to its default. Raises `InvalidConfigError`, `BrokerNotFoundError`.
        """
        subject = f"alter the configuration of broker {broker}"
        return await self._config("PATCH", paths.broker_config(broker), subject, config)

    async def cordon_broker(self, broker: int) -> BrokerDescription:
        """Exclude a broker from receiving new replicas, even after a restart. Raises `BrokerNotFoundError`."""
        return await self._on_broker(broker, "cordon")

    async def uncordon_broker(self, broker: int) -> BrokerDescription:
        """Allow new replicas on a broker again. Raises `BrokerNotFoundError`."""
        return await self._on_broker(broker, "uncordon")

    async def drain_broker(self, broker: int) -> BrokerDescription:
        """Start moving all leaderships, and then all replicas, off a broker. Raises `BrokerNotFoundError`."""
        return await self._on_broker(broker, "drain")

    async def undrain_broker(self, broker: int) -> BrokerDescription:
        """Stop the drain of a broker; moves in progress are finished. Raises `BrokerNotFoundError`."""
        return await self._on_broker(broker, "undrain")

    async def _on_broker(self, broker: int, verb: str) -> BrokerDescription:
        subject = f"{verb} broker {broker}"
        return await self._call("POST", f"{paths.broker(broker)}:{verb}", subject, BrokerDescription)

    async def request_restart(self, broker: int) -> RestartPermitAnswer:
        """Acquire the cluster's single permit to restart a broker.

        Raises `RestartRefusedError` naming the partitions that would have too few replicas, or the broker that has the
        permit.
        """
        subject = f"restart broker {broker}"
        return await self._call(
            "POST", f"{paths.broker(broker)}:request-restart", subject, RestartPermitAnswer
        )

    async def unregister_broker(self, broker: int) -> None:
        """Remove a permanently stopped broker. Raises `NotPossibleNowError` while the broker runs or has replicas."""
        await self._delete(paths.broker(broker), f"unregister broker {broker}", BrokerNotFoundError)

    async def describe_partition(self, topic: str, partition: int) -> PartitionDescription:
        """Return the leader and the replicas of a partition, and the progress of each voter of a write quorum."""
        place = TopicPartition(topic, partition)
        return await self._call("GET", paths.partition(place), f"describe {place}", PartitionDescription)

    async def reassign(self, topic: str, partition: int, replicas: Iterable[int]) -> PartitionState:
        """Start moving a partition to these brokers, preferred leader first; repeating the call is not an error.

        Raises `ReassignmentInProgressError`, `InvalidConfigError`, `BrokerNotFoundError`.
        """
        place = TopicPartition(topic, partition)
        body = ReassignRequest(replicas=list(replicas))
        path = f"{paths.partition(place)}:reassign"
        return await self._call("POST", path, f"reassign {place}", PartitionState, body=body)

    async def cancel_reassignment(self, topic: str, partition: int) -> PartitionState:
        """Cancel the move of a partition.

        Raises `NotEnoughReplicasError` if too few in-sync replicas would remain, and `NotPossibleNowError` if a drain
        would start the same move again.
        """
        place = TopicPartition(topic, partition)
        path = f"{paths.partition(place)}/reassignment"
        return await self._call("DELETE", path, f"cancel the reassignment of {place}", PartitionState)

    async def elect(self, topic: str, partition: int, kind: ElectionKind = "preferred") -> PartitionState:
        """Elect the preferred leader, or with `unclean` the replica with the longest log, although records may be lost.

        Raises `NotPossibleNowError` if no replica of the requested kind can lead.
        """
        place = TopicPartition(topic, partition)
        path = f"{paths.partition(place)}:elect"
        return await self._call(
            "POST", path, f"elect a leader of {place}", PartitionState, body=ElectRequest(kind=kind)
        )

    async def compare_replicas(
        self, topic: str, partition: int, first_offset: int | None = None, end_offset: int | None = None
    ) -> PartitionDigest:
        """Compare the checksums of an offset range on every replica, by default of all committed records.

        One call compares only a limited amount of data; `next_offset` of the answer is the start offset for the next
        call. Raises `OffsetExpiredError` and `OffsetOutOfRangeError` for offsets outside the committed records.
        """
        place = TopicPartition(topic, partition)
        given = {"from": first_offset, "to": end_offset}
        query: Query = {name: offset for name, offset in given.items() if offset is not None}
        path, subject = f"{paths.partition(place)}:digest", f"compare the replicas of {place}"
        return await self._call("GET", path, subject, PartitionDigest, query=query)

    async def compare_newest(self, topic: str, partition: int) -> PartitionDigest:
        """Compare the newest record of each key of a compacted topic on every replica.

        Replicas clean their logs at different times, so only these records are equal everywhere. Raises
        `NotPossibleNowError` if the topic is not compacted.
        """
        place = TopicPartition(topic, partition)
        path, subject = f"{paths.partition(place)}:digest", f"compare the newest records of {place}"
        return await self._call("GET", path, subject, PartitionDigest, query={"mode": "latest"})

    async def describe_cleaning(self, topic: str, partition: int) -> PartitionCleaning:
        """Return the cleaning of each replica of a partition: offsets, dirty ratio and last round."""
        place = TopicPartition(topic, partition)
        path, subject = f"{paths.partition(place)}/cleaning", f"describe the cleaning of {place}"
        return await self._call("GET", path, subject, PartitionCleaning)

    async def clean_partition(self, topic: str, partition: int) -> PartitionCleaning:
        """Clean every replica of a compacted partition as soon as possible, whatever its dirty ratio.

        The call returns the state before the rounds; `describe_cleaning` shows how the rounds ended. Records that are
        younger than `min.compaction.lag.ms` are kept. Raises `NotPossibleNowError` if the topic is not compacted.
        """
        place = TopicPartition(topic, partition)
        path, subject = f"{paths.partition(place)}:clean", f"clean {place}"
        return await self._call("POST", path, subject, PartitionCleaning)

    async def reassignments(self) -> list[ReassignmentDescription]:
        """Return the reassignments in progress."""
        return await self._pages("/v1/reassignments", "list reassignments", Page[ReassignmentDescription])

    async def replica_sizes(self, topic: str | None = None) -> list[TopicSizes]:
        """Return the size of each replica's log on every broker, of all topics or of one.

        A replica whose broker does not answer has the size None. Raises `TopicNotFoundError` if the given topic does
        not exist.
        """
        if topic is not None:
            await self.describe_topic(topic)
        query: dict[str, str] = {} if topic is None else {"topic": topic}
        return await self._pages("/v1/replica-sizes", "replica sizes", Page[TopicSizes], query)

    async def offsets_for(
        self, positions: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of each position: `earliest`, `latest` or a time.

        The offset of a time is None if the partition has no record with this timestamp or a later one.
        """
        return await OffsetLookup(self._transport, MetadataCache(self._transport)).lookup(positions)

    async def list_groups(self) -> list[GroupSummary]:
        """Return every consumer group with its coordinator, sorted by name."""
        return await self._pages(paths.GROUPS, "list groups", GroupListing)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group with its members and their partitions. Raises `GroupNotFoundError`."""
        return await self._call("GET", paths.group(group), f"describe group {group}", GroupDescription)

    async def group_lag(self, group: str, *, isolation: Isolation = "read_uncommitted") -> LagAnswer:
        """Return the lag of a group in records and seconds. Raises `GroupNotFoundError`.

        With `isolation="read_committed"`, the lag ends before the first record of an open transaction.
        """
        path, subject = f"{paths.group(group)}/lag", f"lag of group {group}"
        return await self._call("GET", path, subject, LagAnswer, query={"isolation": isolation})

    async def group_offsets(
        self, group: str, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, for these topics or for all topics. Raises `GroupNotFoundError`."""
        subject = f"offsets of group {group}"
        answer = await self._call(
            "GET", f"{paths.group(group)}/offsets", subject, OffsetsAnswer, query=paths.topics_query(topics)
        )
        return _by_place(answer)

    async def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members; a missing group is created.

        Raises `GroupNotEmptyError`, and the error of the first partition whose offset was not stored.
        """
        entries = tuple(
            OffsetCommit(topic=place.topic, partition=place.partition, offset=offset)
            for place, offset in offsets.items()
        )
        subject = f"commit offsets of group {group}"
        try:
            request = CommitRequest(offsets=entries)
        except ProblemError as problem:
            raise error_of(problem, subject=subject) from problem
        answer = await self._call("PUT", f"{paths.group(group)}/offsets", subject, CommitAnswer, body=request)
        for error in commit_errors(answer, subject, None).values():
            raise error

    async def delete_group_offsets(
        self, group: str, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Delete the committed offsets of topics that no member reads, and return the deleted offsets.

        Raises `GroupNotFoundError`, `GroupNotEmptyError`.
        """
        subject = f"delete offsets of group {group}"
        answer = await self._call(
            "DELETE",
            f"{paths.group(group)}/offsets",
            subject,
            OffsetsAnswer,
            query=paths.topics_query(topics),
        )
        return _by_place(answer)

    async def reset_group_offsets(
        self,
        group: str,
        to: ResetTo,
        topics: str | Iterable[str | TopicPartition | ResetPartition] | None = None,
        *,
        dry_run: bool = False,
    ) -> ResetAnswer:
        """Move the committed offsets of a group without members.

        With `dry_run`, only return the new offsets without moving any. `to` is `"earliest"`, `"latest"` or a
        `ResetTarget`: a timestamp, a duration back from now, a shift or an offset. Without `topics`, all committed
        offsets of the group are moved; with `topics`, a missing group is created. Offsets whose entry in the answer has
        a `problem` are not moved. Raises `GroupNotFoundError`, `GroupNotEmptyError`.
        """
        subject = f"reset offsets of group {group}"
        try:
            chosen = [topics] if isinstance(topics, str) else topics
            request = ResetRequest(
                to=to, topics=None if chosen is None else tuple(map(_reset_choice, chosen))
            )
        except ProblemError as problem:
            raise error_of(problem, subject=subject) from problem
        # A repeated shift would move the offsets twice, so the new offsets are looked up first and then committed.
        shifts = request.position.kind is ResetKind.SHIFT
        query: Query = {"dry_run": "true"} if dry_run or shifts else {}
        path = f"{paths.group(group)}/offsets:reset"
        answer = await self._call("POST", path, subject, ResetAnswer, body=request, query=query)
        if shifts and not dry_run:
            found = {
                TopicPartition(entry.topic, entry.partition): entry.after
                for entry in answer.offsets
                if entry.after is not None and entry.problem is UNSET
            }
            if found:
                await self.commit_group_offsets(group, found)
        return answer

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its committed offsets.

        Raises `GroupNotFoundError`, `GroupNotEmptyError`.
        """
        await self._delete(paths.group(group), f"delete group {group}", GroupNotFoundError)

    async def list_transactions(
        self, name: str | None = None, *, unfinished: bool = False, is_open: bool = False
    ) -> list[TransactionDescription]:
        """Return the producers with transactions; with `name`, only producers whose names begin with this text.

        `unfinished`: return only producers with committed transactions that some partitions have not confirmed.
        `is_open`: return only producers with a transaction that is open in a partition whose leader answers.
        """
        state = "open" if is_open else "unfinished" if unfinished else "all"
        chosen: dict[str, str] = {"state": state}
        if name is not None:
            chosen["name"] = name
        found = await self._pages(
            paths.TRANSACTIONS, "list transactions", Page[TransactionDescription], chosen
        )
        return [each for each in found if each.unfinished or not unfinished]

    async def describe_transaction(self, transaction: str) -> TransactionDescription:
        """Return a transaction such as `17.4`, or the newest transaction of a producer name.

        The answer lists the partitions in which the transaction is open. Raises `TransactionNotFoundError`.
        """
        path, subject = paths.transaction(transaction), f"describe transaction {transaction}"
        return await self._call("GET", path, subject, TransactionDescription)

    async def abort_transaction(self, transaction: str) -> DecidedTransaction:
        """Abort a transaction such as `17.4`, or the open transaction of a producer name.

        The producer can begin another transaction. Raises `TransactionNotFoundError`, `TransactionCommittedError`.
        """
        path, subject = f"{paths.transaction(transaction)}:abort", f"abort transaction {transaction}"
        return await self._call("POST", path, subject, DecidedTransaction)

    async def forget_transactions(self, name: str) -> None:
        """Forget a producer name, and abort its open transaction.

        Raises `TransactionNotFoundError`, and `TransactionUnfinishedError` until partitions have confirmed its commits.
        """
        subject = f"forget producer {name}"
        await self._delete(paths.transaction(name), subject, TransactionNotFoundError)

    async def partition_transactions(self, place: TopicPartition) -> PartitionTransactions:
        """Return the open transactions of a partition, oldest first, and its last stable offset.

        Raises `TopicNotFoundError`, `PartitionNotFoundError`.
        """
        path, subject = f"{paths.partition(place)}/transactions", f"transactions of {place}"
        return await self._call("GET", path, subject, PartitionTransactions)

    async def partition_producers(self, place: TopicPartition) -> list[PartitionProducer]:
        """Return the producers that a partition remembers, by id. Raises `PartitionNotFoundError`."""
        path, subject = f"{paths.partition(place)}/producers", f"producers of {place}"
        return await self._pages(path, subject, Page[PartitionProducer])

    async def _config(
        self, method: str, path: str, subject: str, config: Mapping[str, ConfigInput] | None = None
    ) -> dict[str, ConfigEntry]:
        body = None if config is None else AlterConfigRequest(config=dict(config))
        return (await self._call(method, path, subject, ConfigDescription, body=body)).config

    async def _ask_offsets(self, place: TopicPartition) -> PartitionOffsets:
        path = f"{paths.partition(place)}/offsets"
        call = json_call("GET", path, f"offsets of {place}")
        return decoded(await self._send_to_leader(call, place), PartitionOffsets, call.subject)

    async def _send_to_leader(self, call: Call, place: TopicPartition) -> Answer:
        metadata = MetadataCache(self._transport)
        topic = await metadata.topic(place.topic)
        if not 0 <= place.partition < len(topic.partitions):
            raise partition_not_found(place, len(topic.partitions))
        leader = metadata.picture.leader(place.topic, place.partition)
        if leader is None:
            problem = ProblemError("no_leader", f"{place} has no leader")
            raise NoLeaderError(problem, subject=call.subject)
        partitions = [(place.topic, place.partition)]
        return await LeaderCalls(self._transport, metadata).send(call, leader, partitions)

    async def _check_leaders(self, created: TopicDescription) -> None:
        """Raise `NoLeaderError` until the brokers' own metadata shows a leader for every partition."""
        metadata = await self.metadata([created.name])
        led = [
            partition
            for topic in metadata.topics
            for partition in topic.partitions
            if topic.topic_id == created.topic_id and partition.leader is not None
        ]
        if len(led) < created.partitions:
            detail = f"{len(led)} of {created.partitions} partitions have a leader"
            raise NoLeaderError(ProblemError("no_leader", detail), subject=f"create topic {created.name}")

    async def _delete(
        self, path: str, subject: str, absent: type[ClusterError], *, headers: Mapping[str, str] | None = None
    ) -> None:
        call = json_call("DELETE", path, subject, headers=headers)
        attempts = 0

        async def delete() -> None:
            """Make one attempt to delete the group."""
            nonlocal attempts
            attempts += 1
            try:
                await self._transport.send_to_any(call)
            except absent:
                # An earlier attempt, whose answer was lost, has completed the deletion.
                if attempts == 1:
                    raise

        await self._transport.retry(delete)

    async def whoami(self) -> WhoAmI:
        """Return the caller's principal and token, and the security mode of the cluster."""
        return await self._call("GET", "/v1/whoami", "whoami", WhoAmI)

    async def security_status(self) -> SecurityStatus:
        """Return the security mode, and the operations that `enforce` mode would refuse, counted by all brokers."""
        return await self._call("GET", "/v1/security", "security status", SecurityStatus)

    async def tokens(self, principal: str | None = None) -> list[TokenDescription]:
        """Return the API tokens without their secrets, of all principals or of principals that match a pattern."""
        query = {} if principal is None else {"principal": principal}
        return await self._pages(paths.TOKENS, "list tokens", Page[TokenDescription], query)

    async def create_token(
        self,
        principal: str,
        *,
        expires_in: Duration | None = TOKEN_LIFE,
        note: str = "",
        owner: str | None = None,
    ) -> CreatedToken:
        """Create an API token for `user:NAME`, which expires unless `expires_in` is None.

        `owner` names the program that manages the token; a token with an owner is revoked only with `force`. The call
        is not retried, because a retry could create a second token. Raises `InvalidPrincipalError`.
        """
        seconds = None if expires_in is None else max(1, int(seconds_of(expires_in, "expires_in")))
        # The body is a dictionary, because the checks of the request's type would raise a problem instead of the SDK's
        # error.
        body: dict[str, object] = {"principal": principal, "expires_in_seconds": seconds, "note": note}
        if owner is not None:
            body["owner"] = owner
        call = json_call("POST", paths.TOKENS, f"create a token for {principal}", body)
        answer = await self._transport.send_to_any(call)
        return decoded(answer, CreatedToken, call.subject)

    async def revoke_token(self, token_id: str, *, force: bool = False) -> bool:
        """Revoke a token; return whether every running broker has applied the change. Raises `TokenNotFoundError`."""
        path, subject = f"{paths.TOKENS}/{quote(token_id, safe='')}", f"revoke token {token_id}"
        answer = await self._call("DELETE", path, subject, Applied, query=paths.forced(force))
        return answer.applied_everywhere

    async def acls(
        self, principal: str | None = None, *, kind: str | None = None, name: str | None = None
    ) -> list[AclDescription]:
        """Return all ACLs, or the ACLs whose principal a pattern matches.

        `kind` and `name` select the ACLs on resources of this kind, and the ACLs whose pattern matches this name.
        """
        given = {"principal": principal, "kind": kind, "name": name}
        query = {parameter: value for parameter, value in given.items() if value is not None}
        return await self._pages(paths.ACLS, "list ACLs", Page[AclDescription], query)

    async def create_acl(
        self,
        principal: str,
        operations: Iterable[str],
        kind: str,
        pattern: str,
        *,
        effect: Literal["allow", "deny"] = "allow",
        owner: str | None = None,
    ) -> CreatedAcl:
        """Allow or deny operations; an existing ACL is kept. Raises `InvalidAclError`, `InvalidPrincipalError`.

        `owner` names the program that manages the ACL; an ACL with an owner is removed only with `force`.
        """
        body = {
            "effect": effect,
            "principal": principal,
            "operations": list(operations),
            "kind": kind,
            "pattern": pattern,
        }
        if owner is not None:
            body["owner"] = owner
        return await self._call("POST", paths.ACLS, f"{effect} {principal}", CreatedAcl, body=body)

    async def remove_acl(self, acl_id: str, *, force: bool = False) -> bool:
        """Remove an ACL; return whether every running broker has applied the change. Raises `AclNotFoundError`."""
        path, subject = f"{paths.ACLS}/{quote(acl_id, safe='')}", f"remove ACL {acl_id}"
        answer = await self._call("DELETE", path, subject, Applied, query=paths.forced(force))
        return answer.applied_everywhere

    async def quotas(self, subject: str | None = None, *, usage: bool = False) -> list[QuotaDescription]:
        """Return all quotas, or the quotas whose subject a pattern matches, with their usage if requested."""
        query: dict[str, str] = {} if subject is None else {"subject": subject}
        if usage:
            query["usage"] = "true"
        return await self._pages(paths.QUOTAS, "list quotas", Page[QuotaDescription], query)

    async def put_quota(
        self,
        subject: str,
        *,
        each: Mapping[str, int] | None = None,
        shared: Mapping[str, int] | None = None,
        owner: str | None = None,
        force: bool = False,
    ) -> ChangedQuota:
        """Set the whole quota of a subject: limits of each matching principal, and of all of them together.

        Raises `InvalidQuotaError`, and `ConflictError` for a quota that a program manages, unless `force` is given.
        """
        body = {"each": dict(each or {}), "shared": dict(shared or {}), "owner": owner}
        path, query = f"{paths.QUOTAS}/{quote(subject, safe='')}", paths.forced(force)
        return await self._call("PUT", path, f"set quota of {subject}", ChangedQuota, body=body, query=query)

    async def remove_quota(self, subject: str, *, force: bool = False) -> bool:
        """Remove a quota; return whether every running broker has applied the change. Raises `QuotaNotFoundError`."""
        path = f"{paths.QUOTAS}/{quote(subject, safe='')}"
        answer = await self._call(
            "DELETE", path, f"remove quota of {subject}", Applied, query=paths.forced(force)
        )
        return answer.applied_everywhere

    async def create_link(self, request: CreateLinkRequest, *, dry_run: bool = False) -> LinkDescription:
        """Create a link, which mirrors topics of another cluster; with `dry_run`, only check it.

        Raises `LinkExistsError`, `LinkSourceUnreachableError` and `InvalidLinkError`.
        """
        query, subject = {"dry_run": "true"} if dry_run else None, f"create link {request.name}"
        return await self._call("POST", paths.LINKS, subject, LinkDescription, body=request, query=query)

    async def links(self) -> list[LinkDescription]:
        """Return every link, sorted by name."""
        return await self._pages(paths.LINKS, "list links", Page[LinkDescription])

    async def describe_link(self, link: str) -> LinkDescription:
        """Return a link. Raises `LinkNotFoundError`, as do the other calls about one link."""
        return await self._call("GET", paths.link(link), f"describe link {link}", LinkDescription)

    async def link_topics(self, link: str) -> list[LinkTopic]:
        """Return the topics of a link with their lag behind the source, sorted by name."""
        return await self._pages(f"{paths.link(link)}/topics", f"list topics of link {link}", Page[LinkTopic])

    async def link_tails(self, link: str) -> list[LinkTail]:
        """Return the files with records that were cut from the topics of a link, because its source lacks them."""
        return await self._pages(f"{paths.link(link)}/tails", f"list tails of link {link}", Page[LinkTail])

    async def alter_link(self, link: str, request: AlterLinkRequest) -> LinkDescription:
        """Change a link; return it. Raises `InvalidLinkError`, and `LinkSourceChangedError` for another cluster."""
        path, subject = paths.link(link), f"alter link {link}"
        return await self._call("PATCH", path, subject, LinkDescription, body=request)

    async def pause_link(self, link: str) -> LinkDescription:
        """Stop the copying of a link's mirrors."""
        return await self._act_on_link(link, "pause", LinkDescription)

    async def resume_link(self, link: str) -> LinkDescription:
        """Continue the copying of a link's mirrors."""
        return await self._act_on_link(link, "resume", LinkDescription)

    async def acknowledge_link(self, link: str) -> LinkDescription:
        """Let stopped mirrors of a link continue, each with the loss that stopped it."""
        return await self._act_on_link(link, "acknowledge", LinkDescription)

    async def promote_link(
        self, link: str, topics: Chosen, mode: PromotionMode = "planned"
    ) -> list[LinkTopic]:
        """Begin to make mirrors accept records; `link_topics` omits them once they do. Raises `TopicNotFoundError`."""
        return await self._act_on_link(link, "promote", list[LinkTopic], {"topics": topics, "mode": mode})

    async def take_back_link(self, link: str, topics: Chosen) -> list[LinkTopic]:
        """Cancel the hand-over of mirrors, so that the source accepts records. Raises `NotHandedOverError`."""
        return await self._act_on_link(link, "take-back", list[LinkTopic], {"topics": topics})

    async def adopt_link(self, link: str, topics: list[str]) -> list[LinkTopic]:
        """Make topics of this cluster mirrors of their copies in the source. Raises `HistoriesDivergedError`."""
        return await self._act_on_link(link, "adopt", list[LinkTopic], {"topics": topics})

    async def delete_link(self, link: str) -> None:
        """Delete a link. Raises `LinkInUseError` while the link has mirrors."""
        await self._transport.call(json_call("DELETE", paths.link(link), f"delete link {link}"))

    async def check_access(
        self, principal: str, operation: str, kind: str, name: str, *, groups: Iterable[str] = ()
    ) -> CheckAnswer:
        """Return whether a principal may execute an operation, and the id of the deciding ACL or another reason."""
        body = {
            "principal": principal,
            "groups": list(groups),
            "operation": operation,
            "kind": kind,
            "name": name,
        }
        return await self._call("POST", f"{paths.ACLS}:check", f"check {principal}", CheckAnswer, body=body)

    async def _act_on_link(self, link: str, action: str, type_: type[T], body: object = None) -> T:
        path, subject = f"{paths.link(link)}:{action}", f"{action} {link}"
        return await self._call("POST", path, subject, type_, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        subject: str,
        type_: type[T],
        *,
        body: object = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        answer = await self._transport.call(json_call(method, path, subject, body, query, headers))
        return decoded(answer, type_, subject)

    async def _pages(
        self, path: str, subject: str, type_: type[Page[T]], chosen: Query | None = None
    ) -> list[T]:
        """Return the entries of all pages of a list."""
        query: dict[str, str | int] = {**(chosen or {}), "limit": PAGE_ENTRIES}
        found: list[T] = []
        while True:
            page = await self._call("GET", path, subject, type_, query=query)
            found += page.items
            if page.next is None:
                return found
            query["after"] = page.next


def _topic_id_header(topic_id: str | None) -> dict[str, str]:
    return {} if topic_id is None else {Header.TOPIC_ID: topic_id}


def _reset_choice(topic: str | TopicPartition | ResetPartition) -> str | ResetPartition:
    if isinstance(topic, TopicPartition):
        return ResetPartition(topic=topic.topic, partition=topic.partition)
    return topic


def _by_place(answer: OffsetsAnswer) -> dict[TopicPartition, CommittedOffset]:
    return {TopicPartition(entry.topic, entry.partition): entry for entry in answer.offsets}
