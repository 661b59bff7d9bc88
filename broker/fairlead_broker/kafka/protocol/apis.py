"""The APIs of Kafka's protocol that the listener answers, with their versions.

`dispatch` answers ApiVersions from this table and finds the call of each request in it; the reference page is generated
from it. An API is in the table only if every version in its range is fully supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ApiKey(IntEnum):
    """Keys of Kafka's APIs."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One API with the versions that the listener answers."""

    key: ApiKey
    name: str
    """Name in Kafka's message definitions, without `Request`."""
    first: int
    last: int
    note: str
    """Fields that an answer omits, and requests that it refuses, for the reference page."""

    def serves(self, version: int) -> bool:
        """Return whether the listener answers a version."""
        return self.first <= version <= self.last


_TABLE: Final = (
    Api(ApiKey.PRODUCE, "Produce", 3, 13, "Batches of format 2."),
    Api(
        ApiKey.FETCH,
        "Fetch",
        4,
        18,
        "Records of aborted transactions are left out for readers of committed records.",
    ),
    Api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, "Tiered offsets are answered with -1."),
    Api(ApiKey.METADATA, "Metadata", 0, 13, "Brokers without a Kafka address are left out."),
    Api(
        ApiKey.OFFSET_COMMIT,
        "OffsetCommit",
        2,
        10,
        "Metadata of at most 256 bytes; a retention time in the request is ignored.",
    ),
    Api(ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, ""),
    Api(
        ApiKey.FIND_COORDINATOR,
        "FindCoordinator",
        0,
        6,
        "Coordinators of groups. Every broker coordinates transactions, so a broker names itself.",
    ),
    Api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, "The classic protocol; subscriptions of at most 64 KiB."),
    Api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, ""),
    Api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, ""),
    Api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, "Assignments of at most 64 KiB for each member."),
    Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, "Groups of the classic protocol."),
    Api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, ""),
    Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, ""),
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "ConsumerGroupHeartbeat",
        0,
        1,
        "The protocol of KIP-848. Internal topics need a regular expression that begins with `__`.",
    ),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, ""),
    Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, "Two-phase commit of version 6 is not supported."),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        "AddPartitionsToTxn",
        0,
        3,
        "The later versions are used between Kafka's brokers.",
    ),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, "One group for each transaction."),
    Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, "Metadata of at most 256 bytes."),
    Api(ApiKey.END_TXN, "EndTxn", 0, 5, "Version 5 states the epoch of the next transaction."),
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        "WriteTxnMarkers",
        1,
        2,
        "Aborts the open transaction of a producer in all its partitions, with the operation `alter` on the cluster. "
        "Only a producer commits.",
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        "ListTransactions",
        0,
        1,
        "The newest transaction of each producer with a name. Each broker lists a share of them.",
    ),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, ""),
    Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, "The only finalized feature is version 2 of transactions."),
    Api(
        ApiKey.SASL_HANDSHAKE,
        "SaslHandshake",
        0,
        1,
        "PLAIN and OAUTHBEARER. Version 0 is answered with UNSUPPORTED_VERSION.",
    ),
    Api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, "The token is an API token or a signed token."),
    Api(
        ApiKey.CREATE_TOPICS,
        "CreateTopics",
        2,
        7,
        "An existing topic is an error, unlike over HTTP.",
    ),
    Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, ""),
    Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, ""),
    Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, ""),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, "Requests of replicas are refused."),
    Api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, "Only for groups without members."),
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigs",
        1,
        4,
        "Topics, brokers, and with an empty broker id the cluster.",
    ),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, "The same resources."),
    Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, "Resets every key that the request does not name."),
    Api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, "Topics and brokers."),
    Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, "Brokers with a Kafka address."),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, ""),
    Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, "The data directory of the broker."),
    Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, ""),
    Api(
        ApiKey.DESCRIBE_QUORUM,
        "DescribeQuorum",
        0,
        2,
        "The controller is the only voter, and offsets are revisions of the coordination store.",
    ),
    Api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, ""),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, ""),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, ""),
)
APIS: Final[Mapping[int, Api]] = MappingProxyType({api.key.value: api for api in _TABLE})
"""Served APIs by key."""
