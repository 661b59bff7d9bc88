"""One exception class for every code of the problem catalogue.

`kinds.error_of` finds the class of a code here; users import the classes from `fairlead.errors`. A test compares these
classes with the catalogue.
"""

from __future__ import annotations

from fairlead.errors.kinds import BugError, DataLossError, FencedError, FixError, RefreshError, RetryError


class ThrottledError(RetryError, code="throttled"):
    """A limit is exceeded."""


class NotEnoughReplicasError(RetryError, code="not_enough_replicas"):
    """Too few replicas are in sync."""


class OffsetNotAvailableError(RetryError, code="offset_not_available"):
    """The end offset is not known yet."""


class ShuttingDownError(RetryError, code="shutting_down"):
    """The broker is stopping."""


class OverloadedError(RetryError, code="overloaded"):
    """The broker is overloaded."""


class CoordinationUnavailableError(RetryError, code="coordination_unavailable"):
    """The coordination store cannot be reached."""


class AckTimeoutError(RetryError, code="ack_timeout"):
    """The acknowledgement took too long."""


class NotEnoughReplicasAfterAppendError(RetryError, code="not_enough_replicas_after_append"):
    """Too few replicas stayed in sync."""


class DiskFullError(RetryError, code="disk_full"):
    """The disk is full."""


class TopicRecreatedError(RefreshError, code="topic_recreated"):
    """The topic was deleted and created again."""


class StaleLeaderEpochError(RefreshError, code="stale_leader_epoch"):
    """The leader epoch is stale."""


class UnknownLeaderEpochError(RefreshError, code="unknown_leader_epoch"):
    """The leader epoch is not known yet."""


class NotLeaderError(RefreshError, code="not_leader"):
    """Another broker leads the partition."""


class NotCoordinatorError(RefreshError, code="not_coordinator"):
    """Another broker coordinates the group."""


class NoLeaderError(RefreshError, code="no_leader"):
    """The partition has no leader."""


class LeaderChangedError(RefreshError, code="leader_changed"):
    """The leader changed while the request waited."""


class MalformedBatchError(FixError, code="malformed_batch"):
    """The record batch is malformed."""


class MalformedRequestError(FixError, code="malformed_request"):
    """The request is malformed."""


class UnsupportedVersionError(FixError, code="unsupported_version"):
    """The version is not supported."""


class CrcMismatchError(FixError, code="crc_mismatch"):
    """The checksum does not match."""


class UnauthenticatedError(FixError, code="unauthenticated"):
    """The caller is not authenticated."""


class ForbiddenError(FixError, code="forbidden"):
    """The operation is not permitted."""


class MethodNotAllowedError(FixError, code="method_not_allowed"):
    """The method is not allowed here."""


class NotAcceptableError(FixError, code="not_acceptable"):
    """The call cannot answer in an acceptable media type."""


class BatchTooLargeError(FixError, code="batch_too_large"):
    """The record batch is too large."""


class BodyTooLargeError(FixError, code="body_too_large"):
    """The request body is too large."""


class HeadersTooLargeError(FixError, code="headers_too_large"):
    """The request headers are too large."""


class UnsupportedMediaTypeError(FixError, code="unsupported_media_type"):
    """The body's media type is not supported."""


class OffsetOutOfRangeError(FixError, code="offset_out_of_range"):
    """The offset is beyond the log."""


class InvalidRecordError(FixError, code="invalid_record"):
    """A record is invalid."""


class InvalidTopicNameError(FixError, code="invalid_topic_name"):
    """The topic name is not allowed."""


class InvalidGroupNameError(FixError, code="invalid_group_name"):
    """The name is not allowed."""


class InvalidPatternError(FixError, code="invalid_pattern"):
    """The pattern is not allowed."""


class GroupTooLargeError(FixError, code="group_too_large"):
    """The group is too large."""


class InvalidConfigError(FixError, code="invalid_config"):
    """The configuration is not allowed."""


class UnknownOptionError(FixError, code="unknown_option"):
    """The option is unknown."""


class IdempotencyKeyReusedError(FixError, code="idempotency_key_reused"):
    """The idempotency key was used for a different body."""


class TopicNotFoundError(FixError, code="topic_not_found"):
    """The topic does not exist."""


class PartitionNotFoundError(FixError, code="partition_not_found"):
    """The partition does not exist."""


class GroupNotFoundError(FixError, code="group_not_found"):
    """The group does not exist."""


class MemberNotFoundError(FixError, code="member_not_found"):
    """The member does not exist."""


class BrokerNotFoundError(FixError, code="broker_not_found"):
    """The broker does not exist."""


class RouteNotFoundError(FixError, code="route_not_found"):
    """The path does not exist."""


class TopicExistsError(FixError, code="topic_exists"):
    """The topic exists with a different specification."""


class OutOfOrderSequenceError(FixError, code="out_of_order_sequence"):
    """The sequence is out of order."""


class GroupNotEmptyError(FixError, code="group_not_empty"):
    """The group has members."""


class ReassignmentInProgressError(FixError, code="reassignment_in_progress"):
    """A reassignment is in progress."""


class NotPossibleNowError(FixError, code="not_possible_now"):
    """The state of brokers or replicas does not allow the operation."""


class TokenNotFoundError(FixError, code="token_not_found"):
    """No API token has this id."""


class AclNotFoundError(FixError, code="acl_not_found"):
    """No ACL has this id."""


class QuotaNotFoundError(FixError, code="quota_not_found"):
    """No quota has this subject."""


class WouldLockOutError(FixError, code="would_lock_out"):
    """The change was refused, because the caller would then be unable to change the security mode back."""


class InvalidAclError(FixError, code="invalid_acl"):
    """A field of an ACL has a value that is not allowed."""


class InvalidQuotaError(FixError, code="invalid_quota"):
    """A field of a quota has a value that is not allowed."""


class InvalidPrincipalError(FixError, code="invalid_principal"):
    """A principal or a pattern of principals does not have the required form."""


class RestartRefusedError(FixError, code="restart_refused"):
    """The restart of the broker is refused for now."""


class TooManyPartitionsError(FixError, code="too_many_partitions"):
    """The brokers have no room for the new partitions."""


class ConflictError(FixError, code="conflict"):
    """Another caller changed the same state at the same time."""


class TransactionNotFoundError(FixError, code="transaction_not_found"):
    """The transaction does not exist."""


class TransactionCommittedError(FixError, code="transaction_committed"):
    """The transaction is committed."""


class TransactionAbortedError(FixError, code="transaction_aborted"):
    """The transaction is aborted."""


class TransactionUnfinishedError(RetryError, code="transaction_unfinished"):
    """An earlier transaction of the producer is not finished."""


class InvalidTransactionError(FixError, code="invalid_transaction"):
    """The transaction's settings are invalid."""


class TransactionTooLargeError(FixError, code="transaction_too_large"):
    """The transaction has too many partitions."""


class ProducerFencedError(FencedError, code="producer_fenced"):
    """A newer producer took over."""


class MemberFencedError(FencedError, code="member_fenced"):
    """The member was fenced."""


class InstanceFencedError(FencedError, code="instance_fenced"):
    """Another instance took over."""


class StaleMemberEpochError(FencedError, code="stale_member_epoch"):
    """The member epoch is stale."""


class OffsetExpiredError(DataLossError, code="offset_expired"):
    """The offset has expired."""


class LogTruncatedError(DataLossError, code="log_truncated"):
    """The log was truncated."""

    @property
    def safe_offset(self) -> int:
        """Offset at which to continue: the records before this offset are unchanged."""
        offset = self.data.get("end_offset")
        assert isinstance(offset, int), "the problem names the offset at which the logs diverge"
        return offset


class UnknownProducerError(DataLossError, code="unknown_producer"):
    """The producer is not known to the partition."""


class LogDamagedError(DataLossError, code="log_damaged"):
    """The stored records are damaged."""


class StorageFailedError(BugError, code="storage_failed"):
    """The storage failed."""


class InternalServerError(BugError, code="internal"):
    """The server failed unexpectedly."""


class PeerRefusedError(FixError, code="peer_refused"):
    """A call between brokers did not come from a broker of this cluster."""


class StaleBrokerEpochError(FencedError, code="stale_broker_epoch"):
    """A call between brokers came from an earlier run of the calling broker."""


class InvalidLinkError(FixError, code="invalid_link"):
    """The link is invalid."""


class LinkNotFoundError(FixError, code="link_not_found"):
    """The link does not exist."""


class LinkExistsError(FixError, code="link_exists"):
    """The link exists with a different specification."""


class LinkInUseError(FixError, code="link_in_use"):
    """The link has mirrors."""


class LinkSourceUnreachableError(RetryError, code="link_source_unreachable"):
    """The source of the link does not answer."""


class LinkSourceChangedError(FixError, code="link_source_changed"):
    """Another cluster answers at the address of the source."""


class TopicIsMirrorError(FixError, code="topic_is_mirror"):
    """The topic is a mirror."""


class TopicMovedError(FixError, code="topic_moved"):
    """The topic has moved to another cluster."""


class NotHandedOverError(FixError, code="not_handed_over"):
    """The topic is not handed over."""


class HistoriesDivergedError(FixError, code="histories_diverged"):
    """The topic and its copy have different histories."""
