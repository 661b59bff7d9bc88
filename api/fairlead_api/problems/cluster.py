"""Problems of the cluster: wrong broker, temporary unavailability, and failures.

Part of the problem catalogue, which `problems` assembles.
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
        "This broker does not lead the partition and was asked not to forward. Nothing was appended.",
        "Send the request to the address that the problem names, or learn the metadata again.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("address", "HOST:PORT of the leader's data listener, null if not known"),
            DataMember("leader_epoch", "leader epoch that this broker knows"),
        ),
    ),
    ProblemDefinition(
        "not_coordinator",
        421,
        "Another broker coordinates the group",
        REFRESH,
        "This broker does not coordinate the group and was asked not to forward.",
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
        "Too much at once",
        RETRY,
        "The caller exceeded a quota, or a partition remembers as many idempotency keys as it may.",
        "Wait for the time of `Retry-After`, then send the request again.",
    ),
    ProblemDefinition(
        "log_damaged",
        500,
        "The stored records are damaged",
        ProblemKind.DATA_LOSS,
        "Bytes on disk in the asked range fail their checksum and no other replica can supply them. Nothing "
        "was dropped; the ranges before and after are served.",
        "Restore the records from elsewhere, or read on at `next_good_offset`; an operator may accept the "
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
        "A write or sync of the data directory failed. The directory takes no more writes until the broker "
        "restarts; reads of what is acknowledged go on.",
        "Look at the disk and the broker's log, then restart the broker.",
    ),
    ProblemDefinition(
        "internal",
        500,
        "The server failed unexpectedly",
        BUG,
        "The broker met a condition that its authors did not foresee. Its log holds the trace.",
        "Report it with the broker's log. Whether the request took effect follows from `side_effect`.",
        data_members=(DataMember("failure_id", "names the entry in the broker's log"),),
    ),
    ProblemDefinition(
        "not_enough_replicas",
        503,
        "Too few replicas are in sync",
        RETRY,
        "Fewer replicas are in sync than `min.insync.replicas` asks for. Nothing was appended.",
        "Retry with back-off; if it lasts, look for brokers that are down or slow.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("in_sync", "number of replicas in sync"),
            DataMember("required", "number that min.insync.replicas asks for"),
        ),
    ),
    ProblemDefinition(
        "no_leader",
        503,
        "The partition has no leader",
        REFRESH,
        "No broker leads the partition now: an election is under way, or no eligible replica is alive.",
        "Learn the metadata again and retry with back-off.",
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "offset_not_available",
        503,
        "The end offset is not known yet",
        RETRY,
        "A new leader does not know yet how far the partition is replicated. It answers this rather than a "
        "smaller number than before.",
        "Retry shortly.",
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "shutting_down",
        503,
        "The broker is stopping",
        RETRY,
        "The broker takes no new work because it is being stopped or restarted. Nothing was appended.",
        "Retry, best at another broker.",
    ),
    ProblemDefinition(
        "overloaded",
        503,
        "The broker is overloaded",
        RETRY,
        "Too many requests or bytes are waiting in this broker. Nothing was appended.",
        "Retry with back-off, after the time of `Retry-After` if there is one.",
    ),
    ProblemDefinition(
        "coordination_unavailable",
        503,
        "The coordination store cannot be reached",
        RETRY,
        "The operation needs the coordination store, and the broker cannot reach it or cannot prove its "
        "lease.",
        "Retry with back-off; if it lasts, look at the coordination store.",
    ),
    ProblemDefinition(
        "leader_changed",
        503,
        "The leader changed while the request waited",
        REFRESH,
        "The batch was appended by a leader that lost its office before the batch was known to be "
        "replicated. It may be stored or not.",
        "Learn the metadata again and send the same batch again; an idempotent producer makes that safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "ack_timeout",
        504,
        "The acknowledgement took too long",
        RETRY,
        "The batch was appended, and its replication or sync did not finish within `timeout_ms`. It may be "
        "stored.",
        "Send the same batch again; an idempotent producer makes that safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "not_enough_replicas_after_append",
        504,
        "Too few replicas stayed in sync",
        RETRY,
        "The batch was appended, then the replicas in sync fell below `min.insync.replicas`. It may be "
        "stored.",
        "Send the same batch again; an idempotent producer makes that safe.",
        side_effect=MAYBE,
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "disk_full",
        507,
        "The disk is full",
        RETRY,
        "The data directory has no room for the batch. Nothing of it was stored; reads go on, and writes "
        "recover by themselves once there is room.",
        "Free or add disk space, then retry.",
    ),
)
"""Problems of the cluster, in order of their status."""
