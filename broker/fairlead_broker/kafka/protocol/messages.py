"""Requests and responses as objects; the library that is generated from Kafka's own definitions reads and writes them.

`connection` decodes requests and encodes responses here, and the families of calls build responses from the classes in
this module. No other module imports the library.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Protocol

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from fairlead_broker.kafka.protocol.apis import APIS, Api, ApiKey
from fairlead_broker.kafka.protocol.request_walk import (
    DATA_ELEMENTS_MAX,
    ELEMENTS_MAX,
    RequestShape,
    UnboundedRequest,
)

__all__ = [
    "MESSAGES",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnResponse",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsResponse",
    "ApiVersionsResponse",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatResponse",
    "CreatePartitionsResponse",
    "CreateTopicsResponse",
    "DeleteGroupsResponse",
    "DeleteRecordsResponse",
    "DeleteTopicsResponse",
    "DescribeClusterResponse",
    "DescribeConfigsResponse",
    "DescribeGroupsResponse",
    "DescribeLogDirsResponse",
    "DescribeProducersResponse",
    "DescribeQuorumResponse",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsResponse",
    "ElectLeadersResponse",
    "EndTxnResponse",
    "FetchResponse",
    "FindCoordinatorResponse",
    "HeartbeatResponse",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdResponse",
    "JoinGroupResponse",
    "LeaveGroupResponse",
    "ListConfigResourcesResponse",
    "ListGroupsResponse",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsResponse",
    "MetadataResponse",
    "OffsetCommitResponse",
    "OffsetDeleteResponse",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochResponse",
    "ProduceResponse",
    "SaslAuthenticateResponse",
    "SaslHandshakeResponse",
    "SyncGroupResponse",
    "TxnOffsetCommitResponse",
    "UndecodableError",
    "WriteTxnMarkersResponse",
    "decode_request",
    "encode_response",
    "is_flexible",
]


DEFINITIONS: Final = f"{__package__}.definitions"
"""Folder with Kafka's own definition files for messages that the library lacks."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=DEFINITIONS):  # type: ignore[misc, call-arg]
    """Heartbeat of a member in the protocol of KIP-848."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=DEFINITIONS):  # type: ignore[misc, call-arg]
    """Response to a heartbeat."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=DEFINITIONS):  # type: ignore[misc, call-arg]
    """Request for descriptions of groups in the protocol of KIP-848."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=DEFINITIONS):  # type: ignore[misc, call-arg]
    """Descriptions of groups."""


MESSAGES: Final[Mapping[ApiKey, tuple[Any, Any]]] = {
    ApiKey.PRODUCE: (ProduceRequest, ProduceResponse),
    ApiKey.FETCH: (FetchRequest, FetchResponse),
    ApiKey.LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    ApiKey.METADATA: (MetadataRequest, MetadataResponse),
    ApiKey.OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (OffsetFetchRequest, OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (FindCoordinatorRequest, FindCoordinatorResponse),
    ApiKey.API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    ApiKey.SASL_HANDSHAKE: (SaslHandshakeRequest, SaslHandshakeResponse),
    ApiKey.SASL_AUTHENTICATE: (SaslAuthenticateRequest, SaslAuthenticateResponse),
    ApiKey.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    ApiKey.HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (DescribeGroupsRequest, DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (ListGroupsRequest, ListGroupsResponse),
    ApiKey.DELETE_GROUPS: (DeleteGroupsRequest, DeleteGroupsResponse),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest, InitProducerIdResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    ApiKey.TXN_OFFSET_COMMIT: (TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    ApiKey.END_TXN: (EndTxnRequest, EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: (WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    ApiKey.LIST_TRANSACTIONS: (ListTransactionsRequest, ListTransactionsResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: (DescribeTransactionsRequest, DescribeTransactionsResponse),
    ApiKey.ALTER_CONFIGS: (AlterConfigsRequest, AlterConfigsResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
    ),
    ApiKey.CREATE_PARTITIONS: (CreatePartitionsRequest, CreatePartitionsResponse),
    ApiKey.CREATE_TOPICS: (CreateTopicsRequest, CreateTopicsResponse),
    ApiKey.DELETE_RECORDS: (DeleteRecordsRequest, DeleteRecordsResponse),
    ApiKey.DELETE_TOPICS: (DeleteTopicsRequest, DeleteTopicsResponse),
    ApiKey.DESCRIBE_CLUSTER: (DescribeClusterRequest, DescribeClusterResponse),
    ApiKey.DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    ApiKey.DESCRIBE_LOG_DIRS: (DescribeLogDirsRequest, DescribeLogDirsResponse),
    ApiKey.DESCRIBE_PRODUCERS: (DescribeProducersRequest, DescribeProducersResponse),
    ApiKey.DESCRIBE_QUORUM: (DescribeQuorumRequest, DescribeQuorumResponse),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    ApiKey.ELECT_LEADERS: (ElectLeadersRequest, ElectLeadersResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    ApiKey.LIST_CONFIG_RESOURCES: (ListConfigResourcesRequest, ListConfigResourcesResponse),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    ),
    ApiKey.OFFSET_DELETE: (OffsetDeleteRequest, OffsetDeleteResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
}
"""Classes for the requests and responses of each API."""
_DATA_APIS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")


def is_flexible(api: Api, version: int) -> bool:
    """Return whether messages of a version use tagged fields and compact lengths."""
    found: bool = MESSAGES[api.key][0].flexible_version_q(version)
    return found


class UndecodableError(Exception):
    """Raised for bytes that are not a request of Kafka's protocol; the connection is closed."""


class Response(Protocol):
    """Response of any API."""

    throttle_time_ms: int
    """Time until the next request of the caller may begin, left out in versions without the field."""

    def encode(self, version: int) -> bytearray:
        """Return the bytes of the response in a version of its API."""
        ...


def decode_request(api: Api, version: int, body: memoryview) -> Any:
    """Return the request in the bytes after a request header. Raises UndecodableError."""
    try:
        _shape(api.key, version).check(body, DATA_ELEMENTS_MAX if api.key in _DATA_APIS else ELEMENTS_MAX)
    except UnboundedRequest as error:
        message = f"{api.name} {version} is out of bounds: {error}"
        raise UndecodableError(message) from error
    try:
        return MESSAGES[api.key][0].decode(body, version=version)
    except Exception as error:
        # The library's readers raise any of several errors for invalid bytes: struct.error, IndexError,
        # UnicodeDecodeError, ...
        message = f"{api.name} {version} cannot be decoded: {type(error).__name__}"
        raise UndecodableError(message) from error


@cache
def _shape(key: ApiKey, version: int) -> RequestShape:
    return RequestShape(MESSAGES[key][0].json, version)


def encode_response(
    api: Api, version: int, correlation_id: int, response: Response
) -> list[bytes | bytearray]:
    """Return the frame of a response: its size, header and body."""
    body = response.encode(version=version)
    # The header of ApiVersions responses has no tagged fields, so that clients can read it before they know any
    # versions.
    tagged = b"\0" if is_flexible(api, version) and api.key is not ApiKey.API_VERSIONS else b""
    return [_SIZE_AND_CORRELATION.pack(4 + len(tagged) + len(body), correlation_id) + tagged, body]


assert APIS.keys() == {key.value for key in MESSAGES}, "every served API has its messages"
