"""Problems in the cluster: wrong broker, temporary unavailability, and failures.

The module is a part of the problem catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind, SideEffect

BUG: Final = ProblemKind.BUG
RETRY: Final = ProblemKind.RETRY
REFRESH: Final = ProblemKind.REFRESH
MAYBE: Final = SideEffect.MAYBE

TOPIC: Final = DataMember("topic", "name of the topic")
PARTITION: Final = DataMember("partition", "index of the partition")

CLUSTER_PROBLEMS: Final = (
    ProblemDefinition(
        "not_leader",
        421,
        "Another broker leads the partition",
        REFRESH,
        "This broker does not lead the partition, and the request must not be forwarded. Nothing was appended.",
        "Send the request to the address that the problem names, or fetch the metadata again.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("address", "HOST:PORT of the leader's data listener, null if not known"),
            DataMember("leader_epoch", "leader epoch known to this broker"),
        ),
    ),
    ProblemDefinition(
        "not_coordinator",
        421,
        "Another broker coordinates the group",
        REFRESH,
        "This broker does not coordinate the group, and the request must not be forwarded.",
        "Send the request to the address that the problem names.",
        data_members=(
            DataMember("group", "name of the group"),
            DataMember("address", "HOST:PORT of the coordinator's data listener, null if not known"),
            DataMember("epoch", "epoch of the coordinator"),
        ),
    ),
    ProblemDefinition(
        "throttled",
        429,
        "A limit is exceeded",
        RETRY,
        "The caller exceeded a quota, or a partition has reached the limit of remembered idempotency keys.",
        "Wait for the time in `Retry-After`, then send the request again.",
        data_members=(
            DataMember("quota", "limit that is exceeded, for a quota"),
            DataMember("subject", "subject of the quota"),
            DataMember("limit", "value of the limit"),
        ),
    ),
    ProblemDefinition(
        "log_damaged",
        500,
        "The stored records are damaged",
        ProblemKind.DATA_LOSS,
        "Bytes on disk in the requested range do not match their checksum, and no other replica can supply them. "
        "No data was dropped; the ranges before and after the damaged range are served.",
        "Restore the records from another source, or continue at `next_good_offset`; an operator may accept the "
        "damage.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("first_offset", "first damaged offset"),
            DataMember("next_good_offset", "first offset that can be read again"),
        ),
    ),
    ProblemDefinition(
        "storage_failed",
        500,
        "The storage failed",
        BUG,
        "A write or sync of the data directory failed. The directory accepts no more writes until the broker "
        "restarts; acknowledged records can still be read.",
        "Check the disk and the broker's log, then restart the broker.",
    ),
    ProblemDefinition(
        "internal",
        500,
        "The server failed unexpectedly",
        BUG,
        "The broker failed with an unexpected error. The broker's log has the stack trace.",
        "Report the failure with the broker's log. `side_effect` tells whether the request may have taken effect.",
        data_members=(DataMember("failure_id", "id of the entry in the broker's log"),),
    ),
    ProblemDefinition(
        "not_enough_replicas",
        503,
        "Too few replicas are in sync",
        RETRY,
        "Fewer replicas are in sync than `min.insync.replicas` requires. Nothing was appended.",
        "Retry with back-off; if the problem persists, look for brokers that are down or slow.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("in_sync", "number of in-sync replicas"),
            DataMember("required", "number that min.insync.replicas requires"),
        ),
    ),
    ProblemDefinition(
        "no_leader",
        503,
        "The partition has no leader",
        REFRESH,
        "No broker leads the partition now: an election is in progress, or no eligible replica is alive.",
        "Fetch the metadata again and retry with back-off.",
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "offset_not_available",
        503,
        "The end offset is not known yet",
        RETRY,
        "A new leader does not yet know the high watermark of the partition, and does not answer with a smaller "
        "offset than before.",
        "Retry shortly.",
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "shutting_down",
        503,
        "The broker is stopping",
        RETRY,
        "The broker accepts no new requests because it is being stopped or restarted. Nothing was appended.",
        "Retry, preferably at another broker.",
    ),
    ProblemDefinition(
        "overloaded",
        503,
        "The broker is overloaded",
        RETRY,
        "Too many requests or bytes are waiting in this broker. Nothing was appended.",
        "Retry with back-off, after the time in `Retry-After` if it is present.",
    ),
    ProblemDefinition(
        "coordination_unavailable",
        503,
        "The coordination store cannot be reached",
        RETRY,
        "The operation needs the coordination store, and the broker cannot reach it or cannot confirm its "
        "lease.",
        "Retry with back-off; if the problem persists, check the coordination store.",
    ),
    ProblemDefinition(
        "leader_changed",
        503,
        "The leader changed while the request waited",
        REFRESH,
        "The batch was appended by a leader that lost its leadership before the replication of the batch was "
        "confirmed. It is unknown whether the batch is stored.",
        "Fetch the metadata again and send the same batch again; an idempotent producer makes this safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "ack_timeout",
        504,
        "The acknowledgement took too long",
        RETRY,
        "The batch was appended, but its replication or sync did not finish within `timeout_ms`. It is "
        "unknown whether the batch is stored.",
        "Send the same batch again; an idempotent producer makes this safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "not_enough_replicas_after_append",
        504,
        "Too few replicas stayed in sync",
        RETRY,
        "The batch was appended, but then the number of in-sync replicas fell below `min.insync.replicas`. It is "
        "unknown whether the batch is stored.",
        "Send the same batch again; an idempotent producer makes this safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "disk_full",
        507,
        "The disk is full",
        RETRY,
        "The data directory has no space for the batch. No part of the batch was stored. Reads continue, and "
        "writes are "
        "accepted again once there is space.",
        "Free or add disk space, then retry.",
    ),
)
"""Problems of the cluster, in order of their status."""
