"""Kafka's error codes, and the error for each problem in the catalogue.

Every family of calls uses this module. A problem that may succeed when retried is mapped to an error that Kafka's
clients retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, auto
from types import MappingProxyType
from typing import Final

from fairlead_api.problems import ProblemError


class KafkaError(IntEnum):
    """Error codes of Kafka's protocol that this listener answers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class Family(Enum):
    """Family of calls; the error for a few problems depends on the family."""

    DATA = auto()
    GROUP = auto()
    TOPIC = auto()
    """Administration of topics."""
    ADMIN = auto()
    """Administration of anything else."""
    TRANSACTION = auto()


_UNKNOWN: Final = KafkaError.UNKNOWN_SERVER_ERROR
ERRORS: Final[Mapping[str, KafkaError]] = MappingProxyType(
    {
        "ack_timeout": KafkaError.REQUEST_TIMED_OUT,
        "acl_not_found": KafkaError.RESOURCE_NOT_FOUND,
        "batch_too_large": KafkaError.MESSAGE_TOO_LARGE,
        "body_too_large": KafkaError.MESSAGE_TOO_LARGE,
        "broker_not_found": KafkaError.INVALID_REQUEST,
        "conflict": KafkaError.INVALID_REQUEST,
        "crc_mismatch": KafkaError.CORRUPT_MESSAGE,
        "disk_full": KafkaError.KAFKA_STORAGE_ERROR,
        "forbidden": KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        "group_not_empty": KafkaError.NON_EMPTY_GROUP,
        "group_not_found": KafkaError.GROUP_ID_NOT_FOUND,
        "group_too_large": KafkaError.GROUP_MAX_SIZE_REACHED,
        "headers_too_large": KafkaError.INVALID_REQUEST,
        "histories_diverged": KafkaError.INVALID_REQUEST,
        "idempotency_key_reused": KafkaError.INVALID_REQUEST,
        "instance_fenced": KafkaError.UNRELEASED_INSTANCE_ID,
        "internal": _UNKNOWN,
        "invalid_acl": KafkaError.INVALID_REQUEST,
        "invalid_config": KafkaError.INVALID_CONFIG,
        "invalid_group_name": KafkaError.INVALID_GROUP_ID,
        "invalid_link": KafkaError.INVALID_REQUEST,
        "invalid_pattern": KafkaError.INVALID_REGULAR_EXPRESSION,
        "invalid_principal": KafkaError.INVALID_REQUEST,
        "invalid_quota": KafkaError.INVALID_REQUEST,
        "invalid_record": KafkaError.INVALID_RECORD,
        "invalid_topic_name": KafkaError.INVALID_TOPIC_EXCEPTION,
        "invalid_transaction": KafkaError.INVALID_TXN_STATE,
        "leader_changed": KafkaError.NOT_LEADER_OR_FOLLOWER,
        "link_exists": KafkaError.INVALID_REQUEST,
        "link_in_use": KafkaError.INVALID_REQUEST,
        "link_not_found": KafkaError.RESOURCE_NOT_FOUND,
        "link_source_changed": KafkaError.INVALID_REQUEST,
        "link_source_unreachable": KafkaError.REQUEST_TIMED_OUT,
        "log_damaged": KafkaError.CORRUPT_MESSAGE,
        "log_truncated": KafkaError.OFFSET_OUT_OF_RANGE,
        "malformed_batch": KafkaError.INVALID_RECORD,
        "malformed_request": KafkaError.INVALID_REQUEST,
        "member_fenced": KafkaError.FENCED_MEMBER_EPOCH,
        "member_not_found": KafkaError.UNKNOWN_MEMBER_ID,
        "method_not_allowed": KafkaError.INVALID_REQUEST,
        "no_leader": KafkaError.LEADER_NOT_AVAILABLE,
        "not_acceptable": KafkaError.INVALID_REQUEST,
        "not_coordinator": KafkaError.NOT_COORDINATOR,
        "not_enough_replicas": KafkaError.NOT_ENOUGH_REPLICAS,
        "not_enough_replicas_after_append": KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        "not_handed_over": KafkaError.INVALID_REQUEST,
        "not_leader": KafkaError.NOT_LEADER_OR_FOLLOWER,
        "not_possible_now": KafkaError.INVALID_REQUEST,
        "offset_expired": KafkaError.OFFSET_OUT_OF_RANGE,
        "offset_not_available": KafkaError.OFFSET_NOT_AVAILABLE,
        "offset_out_of_range": KafkaError.OFFSET_OUT_OF_RANGE,
        "out_of_order_sequence": KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "overloaded": KafkaError.THROTTLING_QUOTA_EXCEEDED,
        "partition_not_found": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        "peer_refused": KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        "producer_fenced": KafkaError.INVALID_PRODUCER_EPOCH,
        "quota_not_found": KafkaError.RESOURCE_NOT_FOUND,
        "reassignment_in_progress": KafkaError.REASSIGNMENT_IN_PROGRESS,
        "restart_refused": KafkaError.INVALID_REQUEST,
        "route_not_found": KafkaError.INVALID_REQUEST,
        "shutting_down": KafkaError.NOT_LEADER_OR_FOLLOWER,
        "stale_broker_epoch": KafkaError.INVALID_REQUEST,
        "stale_leader_epoch": KafkaError.FENCED_LEADER_EPOCH,
        "stale_member_epoch": KafkaError.STALE_MEMBER_EPOCH,
        "storage_failed": KafkaError.KAFKA_STORAGE_ERROR,
        "throttled": KafkaError.THROTTLING_QUOTA_EXCEEDED,
        "token_not_found": KafkaError.RESOURCE_NOT_FOUND,
        "too_many_partitions": KafkaError.INVALID_PARTITIONS,
        "topic_exists": KafkaError.TOPIC_ALREADY_EXISTS,
        "topic_is_mirror": KafkaError.INVALID_REQUEST,
        "topic_moved": KafkaError.INVALID_REQUEST,
        "topic_not_found": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        "topic_recreated": KafkaError.UNKNOWN_TOPIC_ID,
        "transaction_aborted": KafkaError.INVALID_TXN_STATE,
        "transaction_committed": KafkaError.INVALID_TXN_STATE,
        "transaction_not_found": KafkaError.TRANSACTIONAL_ID_NOT_FOUND,
        "transaction_too_large": KafkaError.INVALID_TXN_STATE,
        "transaction_unfinished": KafkaError.CONCURRENT_TRANSACTIONS,
        "unauthenticated": KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        "unknown_leader_epoch": KafkaError.UNKNOWN_LEADER_EPOCH,
        "unknown_option": KafkaError.INVALID_REQUEST,
        "unknown_producer": KafkaError.UNKNOWN_PRODUCER_ID,
        "unsupported_media_type": KafkaError.INVALID_REQUEST,
        "unsupported_version": KafkaError.UNSUPPORTED_VERSION,
        "would_lock_out": KafkaError.INVALID_REQUEST,
        "coordination_unavailable": KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Error for each problem code, unless the family of the call has a different error."""
FAMILY_ERRORS: Final[Mapping[Family, Mapping[str, KafkaError]]] = MappingProxyType(
    {
        Family.DATA: {
            # Producers and consumers retry these errors after they have fetched metadata.
            "coordination_unavailable": KafkaError.NOT_LEADER_OR_FOLLOWER,
            # A producer counts its retries, and treats a quota error as final, but retries after a timeout.
            "overloaded": KafkaError.REQUEST_TIMED_OUT,
            "throttled": KafkaError.REQUEST_TIMED_OUT,
            "forbidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "unauthenticated": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        },
        Family.GROUP: {
            "coordination_unavailable": KafkaError.COORDINATOR_NOT_AVAILABLE,
            "shutting_down": KafkaError.NOT_COORDINATOR,
            "overloaded": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            "throttled": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            "conflict": KafkaError.COORDINATOR_NOT_AVAILABLE,
            "forbidden": KafkaError.GROUP_AUTHORIZATION_FAILED,
            "unauthenticated": KafkaError.GROUP_AUTHORIZATION_FAILED,
        },
        Family.TOPIC: {
            "shutting_down": KafkaError.REQUEST_TIMED_OUT,
            "forbidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "unauthenticated": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            # The change would exceed a limit on the number of partitions.
            "conflict": KafkaError.POLICY_VIOLATION,
        },
        Family.ADMIN: {"shutting_down": KafkaError.REQUEST_TIMED_OUT},
        Family.TRANSACTION: {
            "coordination_unavailable": KafkaError.COORDINATOR_NOT_AVAILABLE,
            "shutting_down": KafkaError.NOT_COORDINATOR,
            "overloaded": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            "throttled": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            "forbidden": KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "unauthenticated": KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "producer_fenced": KafkaError.PRODUCER_FENCED,
            "transaction_aborted": KafkaError.PRODUCER_FENCED,
            "transaction_committed": KafkaError.PRODUCER_FENCED,
            "transaction_not_found": KafkaError.INVALID_PRODUCER_ID_MAPPING,
        },
    }
)


FIELD_ERRORS: Final[Mapping[object, KafkaError]] = MappingProxyType(
    {
        "partitions": KafkaError.INVALID_PARTITIONS,
        "replication_factor": KafkaError.INVALID_REPLICATION_FACTOR,
        "replicas": KafkaError.INVALID_REPLICA_ASSIGNMENT,
    }
)
"""Error for the problem `invalid_config` if the fields of a request are not configuration keys."""


def error_of(problem: ProblemError, family: Family) -> KafkaError:
    """Return Kafka's error for a problem; for an unknown code from a newer broker, the kind of the problem decides."""
    code = problem.code
    if code == "invalid_config" and (field := FIELD_ERRORS.get(problem.data.get("key"))) is not None:
        return field
    found = FAMILY_ERRORS[family].get(code) or ERRORS.get(code)
    if found is not None:
        return found
    return KafkaError.REQUEST_TIMED_OUT if problem.retryable else _UNKNOWN
