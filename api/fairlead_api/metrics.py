"""Definitions of all metrics that a broker exposes.

The broker registers the metrics from these definitions, dashboards and alert rules use the names, and the reference
page is generated from them. This module must not depend on Prometheus' client library. Names follow Prometheus'
conventions: prefix, base unit, `_total` for counters. A label never contains values that callers can create without
limit, such as paths or unknown topics. The module is a single file because the catalogue is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """Prometheus metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """Definition of a metric; `buckets` are the upper bounds of a histogram."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


LATENCY_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Histogram buckets in seconds, from the duration of a read from the page cache to the longest default timeout."""
SYNC_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Histogram buckets in seconds, from the sync time of a drive with a protected cache to that of a failing drive."""
GROUP_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Histogram buckets for the number of batches in one write; writev accepts at most 1,024 buffers."""
ELECTION_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Histogram buckets in seconds, from one round trip between brokers to the return of a broker that was restarted."""
LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE
_HISTOGRAM: Final = MetricKind.HISTOGRAM

METRICS: Final[tuple[MetricDefinition, ...]] = (
    MetricDefinition(
        name="fairlead_build_info",
        kind=_GAUGE,
        help="Always 1; the labels name the running release.",
        labels=("release", "python"),
    ),
    MetricDefinition(
        name="fairlead_authentications_total",
        kind=_COUNTER,
        help="Tokens that were verified, by source and outcome: accepted, malformed, expired, refused, or throttled "
        "before verification. A token that the broker remembers as verified is not counted again.",
        labels=("source", "outcome"),
    ),
    MetricDefinition(
        name="fairlead_kafka_connections",
        kind=_GAUGE,
        help="Open connections of clients of Kafka's protocol.",
    ),
    MetricDefinition(
        name="fairlead_kafka_clients",
        kind=_GAUGE,
        help="Open connections by the software that the client states. After a hundred kinds of software, others "
        "count as other.",
        labels=("software", "version"),
    ),
    MetricDefinition(
        name="fairlead_kafka_fetch_sessions",
        kind=_GAUGE,
        help="Readers whose partitions the broker remembers between fetches of Kafka's protocol.",
    ),
    MetricDefinition(
        name="fairlead_kafka_requests_total",
        kind=_COUNTER,
        help="Requests of Kafka's protocol by API, version and error. The error is that of the whole response, or the "
        "first one of a partition of a produce or a fetch; closed if the connection was closed instead.",
        labels=("api", "version", "error"),
    ),
    MetricDefinition(
        name="fairlead_kafka_request_duration_seconds",
        kind=_HISTOGRAM,
        help="Time from a complete request of Kafka's protocol to its response, including waits for records, "
        "acknowledgements and quotas.",
        labels=("api",),
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_kafka_translation_seconds",
        kind=_HISTOGRAM,
        help="Time to translate the batches of one request from Kafka's format (in) or to it (out).",
        labels=("direction",),
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_known_callers",
        kind=_GAUGE,
        help="Tokens that the broker remembers as verified.",
    ),
    MetricDefinition(
        name="fairlead_access_denied_total",
        kind=_COUNTER,
        help="Operations that no ACL allows. In observe mode, these operations are only counted, with "
        "observed=true.",
        labels=("observed",),
    ),
    MetricDefinition(
        name="fairlead_audit_topic_dropped_total",
        kind=_COUNTER,
        help="Records of the audit log that were not written to the topic `__audit`, because too many records were "
        "waiting.",
    ),
    MetricDefinition(
        name="fairlead_quota_used_ratio",
        kind=_GAUGE,
        help="Used fraction of a quota limit in the whole cluster, as known to this broker. For a limit of each "
        "principal, the value is that of the principal with the largest fraction.",
        labels=("subject", "limit"),
    ),
    MetricDefinition(
        name="fairlead_quota_refused_total",
        kind=_COUNTER,
        help="Requests refused because of a limit. In observe mode, these requests are only counted.",
        labels=("subject", "limit"),
    ),
    MetricDefinition(
        name="fairlead_issuer_keys_age_seconds",
        kind=_GAUGE,
        help="Seconds since the keys of an issuer of signed tokens were fetched; infinite before the first fetch.",
        labels=("issuer",),
    ),
    MetricDefinition(
        name="fairlead_security_stale_seconds",
        kind=_GAUGE,
        help="Seconds since the coordination store last answered this broker. Until the next answer, the "
        "broker uses the ACLs and tokens that it knew then. A value up to a third of lease_seconds is normal.",
    ),
    MetricDefinition(
        name="fairlead_produce_batches_total",
        kind=_COUNTER,
        help="Batches received in produce calls, by outcome: ok or the code of the problem.",
        labels=("code",),
    ),
    MetricDefinition(
        name="fairlead_produce_bytes_total",
        kind=_COUNTER,
        help="Bytes of batches appended, as stored.",
        labels=("topic",),
    ),
    MetricDefinition(
        name="fairlead_fetch_partitions_total",
        kind=_COUNTER,
        help="Partitions requested in fetch calls, by outcome: ok or the code of the problem.",
        labels=("code",),
    ),
    MetricDefinition(
        name="fairlead_fetch_read_seconds",
        kind=_HISTOGRAM,
        help="Time for reading from all partitions of a fetch, without the wait for records.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_fetch_bytes_total",
        kind=_COUNTER,
        help="Bytes of batches in fetch answers, as stored.",
        labels=("topic",),
    ),
    MetricDefinition(
        name="fairlead_records_total",
        kind=_COUNTER,
        help="Records appended (direction in) and sent in fetch answers (direction out).",
        labels=("topic", "direction"),
    ),
    MetricDefinition(
        name="fairlead_request_duration_seconds",
        kind=_HISTOGRAM,
        help="Time from the head of a request to the end of its answer, including long polls.",
        labels=("route", "status"),
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_long_polls_waiting",
        kind=_GAUGE,
        help="Fetches that currently wait for records.",
    ),
    MetricDefinition(
        name="fairlead_held_bytes",
        kind=_GAUGE,
        help="Memory used by unfinished calls: bodies, batches to be appended, answers not yet read by clients.",
        labels=("of",),
    ),
    MetricDefinition(
        name="fairlead_produce_calls",
        kind=_GAUGE,
        help="Produce calls that are currently in progress.",
    ),
    MetricDefinition(
        name="fairlead_admitted_produce_calls",
        kind=_GAUGE,
        help="Current limit of concurrent produce calls, which is lowered when the event loop is late.",
    ),
    MetricDefinition(
        name="fairlead_requests_total",
        kind=_COUNTER,
        help="Requests from clients, by the scheme of their connection: http or https. When all clients of a cluster "
        "have moved to TLS, the number of requests over http stays the same.",
        labels=("scheme",),
    ),
    MetricDefinition(
        name="fairlead_forwarded_requests_total",
        kind=_COUNTER,
        help="Requests forwarded to other brokers, by route and outcome: the status of the answer, no_answer if the "
        "request may have been processed, not_sent if the request was certainly not processed.",
        labels=("route", "outcome"),
    ),
    MetricDefinition(
        name="fairlead_stalled_readers_total",
        kind=_COUNTER,
        help="Connections closed because their clients stopped reading an answer.",
    ),
    MetricDefinition(
        name="fairlead_closed_connections_total",
        kind=_COUNTER,
        help="Connections closed by the broker, by reason: no_request or unauthenticated if the client sent no "
        "request, or no accepted token, in the allowed time, and address if a client address has too many connections.",
        labels=("reason",),
    ),
    MetricDefinition(
        name="fairlead_append_group_batches",
        kind=_HISTOGRAM,
        help="Batches in one write to a partition.",
        buckets=GROUP_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_coordination_seconds",
        kind=_HISTOGRAM,
        help="Duration of calls to etcd or the embedded store, including failed calls.",
        labels=("call",),
        buckets=SYNC_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_duplicate_batches_total",
        kind=_COUNTER,
        help="Batches of idempotent producers and keyed requests that were already stored by an earlier attempt.",
        labels=("topic",),
    ),
    MetricDefinition(
        name="fairlead_held_batches",
        kind=_GAUGE,
        help="Batches that arrived out of order and wait for earlier batches of the same producer.",
    ),
    MetricDefinition(
        name="fairlead_append_fsync_seconds",
        kind=_HISTOGRAM,
        help="Duration of one round of syncs over all written partitions.",
        buckets=SYNC_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_partition_log_start_offset",
        kind=_GAUGE,
        help="Offset of the oldest available record of the partition.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_partition_log_end_offset",
        kind=_GAUGE,
        help="Offset that the next record of the partition gets.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_partition_size_bytes",
        kind=_GAUGE,
        help="Bytes of the partition's segments on disk.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_partition_damaged_ranges",
        kind=_GAUGE,
        help="Unreadable ranges of the partition whose loss has not been accepted.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_leader_partitions",
        kind=_GAUGE,
        help="Partitions that this broker leads.",
    ),
    MetricDefinition(
        name="fairlead_under_replicated_partitions",
        kind=_GAUGE,
        help="Partitions led by this broker with fewer in-sync replicas than replicas.",
    ),
    MetricDefinition(
        name="fairlead_under_min_isr_partitions",
        kind=_GAUGE,
        help="Partitions led by this broker that refuse acks=all: fewer replicas in sync than min.insync.replicas.",
    ),
    MetricDefinition(
        name="fairlead_refused_replicas",
        kind=_GAUGE,
        help="Replicas on this broker that neither lead nor follow: unreadable, or in an epoch without a leader.",
    ),
    MetricDefinition(
        name="fairlead_quarantined_replicas",
        kind=_GAUGE,
        help="Replicas on this broker that are outdated but the only remaining copy; they serve no requests.",
    ),
    MetricDefinition(
        name="fairlead_lost_leases_total",
        kind=_COUNTER,
        help="Number of times that this broker lost its lease while running and registered again.",
    ),
    MetricDefinition(
        name="fairlead_isr_shrinks_total",
        kind=_COUNTER,
        help="Replicas removed from the in-sync replicas of partitions led by this broker.",
    ),
    MetricDefinition(
        name="fairlead_isr_expands_total",
        kind=_COUNTER,
        help="Replicas added to the in-sync replicas of partitions led by this broker.",
    ),
    MetricDefinition(
        name="fairlead_partition_leader_epoch",
        kind=_GAUGE,
        help="Leader epoch in which this broker leads the partition.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_partition_in_sync_replicas",
        kind=_GAUGE,
        help="In-sync replicas of a partition led by this broker, including the leader.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_partition_replica_lag_records",
        kind=_GAUGE,
        help="Records by which the slowest follower of a partition led by this broker lags behind the leader.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_quorum_voters",
        kind=_GAUGE,
        help="Voters of a partition with a write quorum that this broker leads, including slow voters.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_quorum_near",
        kind=_GAUGE,
        help="Voters that had every record within replica.lag.time.max.ms, including the leader.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_quorum_write",
        kind=_GAUGE,
        help="Number of voters that must store a record (W); with fewer near voters, acks=all is refused.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_quorum_commit_lag_records",
        kind=_GAUGE,
        help="Records of a partition with a write quorum that are above the high watermark of its leader.",
        labels=("topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_quorum_vacant_partitions",
        kind=_GAUGE,
        help="Partitions with a write quorum that wait for a leader, reported by the controller; 0 on other brokers.",
    ),
    MetricDefinition(
        name="fairlead_quorum_missing_promises",
        kind=_GAUGE,
        help="Partitions with a write quorum that wait for a leader and an answer of the broker in the label voter, "
        "reported by the controller.",
        labels=("voter",),
    ),
    MetricDefinition(
        name="fairlead_quorum_election_seconds",
        kind=_HISTOGRAM,
        help="Time for which a partition with a write quorum waited for a leader, reported by the controller.",
        buckets=ELECTION_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_deleted_segments_total",
        kind=_COUNTER,
        help="Segments deleted from logs led by this broker, by reason: time, size, or log_start for deleted records.",
        labels=("reason",),
    ),
    MetricDefinition(
        name="fairlead_deleted_bytes_total",
        kind=_COUNTER,
        help="Bytes of segments deleted from logs led by this broker, by reason.",
        labels=("reason",),
    ),
    MetricDefinition(
        name="fairlead_scrub_bytes_total",
        kind=_COUNTER,
        help="Bytes of segments whose checksums the scrub has verified.",
    ),
    MetricDefinition(
        name="fairlead_scrub_damaged_ranges_total",
        kind=_COUNTER,
        help="Damaged ranges that the scrub has found.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_rounds_total",
        kind=_COUNTER,
        help="Rounds of cleaning of compacted partitions, by their end: done, abandoned because the log changed, "
        "damaged because a segment is damaged, failed, or no_space because the volume has no room for a segment.",
        labels=("outcome",),
    ),
    MetricDefinition(
        name="fairlead_cleaner_read_bytes_total",
        kind=_COUNTER,
        help="Bytes of segments that the cleaner has read; each byte of the cleanable part is read twice.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_written_bytes_total",
        kind=_COUNTER,
        help="Bytes of segments that the cleaner has written.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_records_total",
        kind=_COUNTER,
        help="Records that rounds of cleaning have kept or dropped.",
        labels=("fate",),
    ),
    MetricDefinition(
        name="fairlead_cleaner_seconds_total",
        kind=_COUNTER,
        help="Duration of all rounds of cleaning.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_waiting_seconds_total",
        kind=_COUNTER,
        help="Part of the duration for which rounds waited, because of the configured rate or a slow disk.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_map_used_ratio",
        kind=_GAUGE,
        help="Fraction of the memory for keys that the last round used; at 1, a round ends before the end of the log.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_dirty_ratio_max",
        kind=_GAUGE,
        help="Highest share of a compacted partition's log that no round has cleaned.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_oldest_dirty_seconds",
        kind=_GAUGE,
        help="Age of the oldest record of a compacted partition that may be cleaned and that no round has covered.",
    ),
    MetricDefinition(
        name="fairlead_cleaner_uncleanable_partitions",
        kind=_GAUGE,
        help="Compacted partitions whose last round failed.",
    ),
    MetricDefinition(
        name="fairlead_replica_copied_again_total",
        kind=_COUNTER,
        help="Replicas of compacted partitions that dropped their log and copied it again, because tombstones that "
        "the replica had not fetched were removed while it was away.",
    ),
    MetricDefinition(
        name="fairlead_controller_active",
        kind=_GAUGE,
        help="1 on the broker that is the controller, 0 on other brokers; the sum over the cluster is 1.",
    ),
    MetricDefinition(
        name="fairlead_leader_elections_total",
        kind=_COUNTER,
        help="Leaders that this broker elected while it was the controller; unclean elections may have lost records.",
        labels=("kind",),
    ),
    MetricDefinition(
        name="fairlead_leaderless_partitions",
        kind=_GAUGE,
        help="Partitions that no broker can lead at the moment, reported by the controller; 0 on other brokers.",
    ),
    MetricDefinition(
        name="fairlead_reassigning_partitions",
        kind=_GAUGE,
        help="Partitions that are being moved to other brokers, reported by the controller; 0 on other brokers.",
    ),
    MetricDefinition(
        name="fairlead_coordinated_groups",
        kind=_GAUGE,
        help="Consumer groups that this broker coordinates; the sum over the cluster is the number of groups in use.",
    ),
    MetricDefinition(
        name="fairlead_group_members",
        kind=_GAUGE,
        help="Members of the groups that this broker coordinates.",
    ),
    MetricDefinition(
        name="fairlead_group_rebalances_total",
        kind=_COUNTER,
        help="Number of times that a group coordinated by this broker started to reassign its partitions.",
    ),
    MetricDefinition(
        name="fairlead_group_commit_seconds",
        kind=_HISTOGRAM,
        help="Time from a commit of offsets until it is stored, including the wait for the previous transaction.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_group_offset_transactions_total",
        kind=_COUNTER,
        help="Transactions of the coordination store by which this broker has stored committed offsets; commits of a "
        "group can share a transaction.",
    ),
    MetricDefinition(
        name="fairlead_transactions_total",
        kind=_COUNTER,
        help="Transactions that this broker has decided, by outcome (commit, abort) and reason (client, fenced,"
        " timeout, operator, restored).",
        labels=("outcome", "reason"),
    ),
    MetricDefinition(
        name="fairlead_transaction_commit_seconds",
        kind=_HISTOGRAM,
        help="Time from the request of a commit until its decision is stored.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_transaction_end_seconds",
        kind=_HISTOGRAM,
        help="Time from a commit until every partition of its transaction has confirmed the marker, as seen by the"
        " broker that wrote the commit.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_transaction_markers_total",
        kind=_COUNTER,
        help="Markers appended in partitions led by this broker, by outcome (commit, abort).",
        labels=("outcome",),
    ),
    MetricDefinition(
        name="fairlead_transaction_looks_total",
        kind=_COUNTER,
        help="Records of producers that this broker has read to learn the outcomes of open transactions.",
    ),
    MetricDefinition(
        name="fairlead_transaction_writes_total",
        kind=_COUNTER,
        help="Writes to the coordination store that change transactions. Writes with offsets of groups are counted by"
        " fairlead_group_offset_transactions_total.",
    ),
    MetricDefinition(
        name="fairlead_transaction_decisions_total",
        kind=_COUNTER,
        help="Changes of transactions written to the coordination store; changes that arrive together share a write.",
    ),
    MetricDefinition(
        name="fairlead_transactions_open",
        kind=_GAUGE,
        help="Open transactions in partitions led by this broker, one for each partition of a transaction.",
    ),
    MetricDefinition(
        name="fairlead_transaction_oldest_open_seconds",
        kind=_GAUGE,
        help="Time since this broker first saw its oldest open transaction; 0 without an open transaction.",
    ),
    MetricDefinition(
        name="fairlead_partition_unstable_records",
        kind=_GAUGE,
        help="Records from the last stable offset to the high watermark, in the partition led by this broker that has"
        " the most; readers of committed records wait for them.",
    ),
    MetricDefinition(
        name="fairlead_transaction_unfinished_partitions",
        kind=_GAUGE,
        help="Partitions that have not confirmed commits written by this broker.",
    ),
    MetricDefinition(
        name="fairlead_group_lag_records",
        kind=_GAUGE,
        help="Records between a group's committed offset and the high watermark, reported by its coordinator.",
        labels=("group", "topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_group_lag_seconds",
        kind=_GAUGE,
        help="Age of the record at a group's committed offset, 0 without lag; reported by the group's coordinator.",
        labels=("group", "topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_group_lag_hidden_partitions",
        kind=_GAUGE,
        help="Partitions whose lag is not exported because the limit of series per broker is reached.",
    ),
    MetricDefinition(
        name="fairlead_link_lag_records",
        kind=_GAUGE,
        help="Records of the source that a mirror does not have yet, reported by the leader of the mirror.",
        labels=("link", "topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_link_lag_seconds",
        kind=_GAUGE,
        help="Seconds since a mirror last had every record of its source, reported by the leader of the mirror.",
        labels=("link", "topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_link_faulted_partitions",
        kind=_GAUGE,
        help="1 for a partition of a mirror that copies nothing because of damage, a lost source or a policy.",
        labels=("link", "topic", "partition"),
    ),
    MetricDefinition(
        name="fairlead_link_topics",
        kind=_GAUGE,
        help="Topics of a link by state: mirroring, handing_over, promoting, promoted or blocked; reported by the "
        "controller.",
        labels=("link", "state"),
    ),
    MetricDefinition(
        name="fairlead_link_source_reachable",
        kind=_GAUGE,
        help="1 if the source of a running link answered the controller's last calls, 0 otherwise; absent for a "
        "paused link.",
        labels=("link",),
    ),
    MetricDefinition(
        name="fairlead_link_fetch_failures_total",
        kind=_COUNTER,
        help="Fetches from the source of a link that failed and are repeated after a pause.",
        labels=("link",),
    ),
    MetricDefinition(
        name="fairlead_link_promotion_seconds",
        kind=_HISTOGRAM,
        help="Time for which no cluster accepted records of a topic that was promoted by a planned hand-over.",
        labels=("link",),
        buckets=ELECTION_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_link_fetched_bytes_total",
        kind=_COUNTER,
        help="Bytes of batches that mirrors copied from their sources.",
        labels=("link", "topic"),
    ),
    MetricDefinition(
        name="fairlead_link_skipped_records_total",
        kind=_COUNTER,
        help="Offsets that mirrors skipped because the source had deleted the records before they were copied.",
        labels=("link", "topic"),
    ),
    MetricDefinition(
        name="fairlead_link_truncated_records_total",
        kind=_COUNTER,
        help="Records that mirrors dropped because the source had lost them.",
        labels=("link", "topic"),
    ),
    MetricDefinition(
        name="fairlead_link_group_offsets_copied_total",
        kind=_COUNTER,
        help="Committed offsets of groups that were copied from the source of a link.",
        labels=("link",),
    ),
    MetricDefinition(
        name="fairlead_storage_failed",
        kind=_GAUGE,
        help="1 after a failed write or sync of the data directory; writes are refused until a restart.",
    ),
    MetricDefinition(
        name="fairlead_disk_free_bytes",
        kind=_GAUGE,
        help="Bytes free on the file system of the data directory.",
    ),
    MetricDefinition(
        name="fairlead_disk_size_bytes",
        kind=_GAUGE,
        help="Size of the file system of the data directory.",
    ),
    MetricDefinition(
        name="fairlead_memory_used_bytes",
        kind=_GAUGE,
        help="Memory of the process that the system cannot reclaim, not counting mapped pages of segments.",
    ),
    MetricDefinition(
        name="fairlead_memory_limit_bytes",
        kind=_GAUGE,
        help="Memory that the process may use: the limit of its container, or all memory of the machine.",
    ),
    MetricDefinition(
        name="fairlead_event_loop_lag_seconds",
        kind=_HISTOGRAM,
        help="Delay with which the event loop wakes a timer, caused by work that blocks the event loop.",
        buckets=LAG_BUCKETS,
    ),
    MetricDefinition(
        name="fairlead_tls_certificate_expiry_timestamp_seconds",
        kind=_GAUGE,
        help="End of the validity of a listener's certificate, in seconds since 1970.",
        labels=("listener",),
    ),
    MetricDefinition(
        name="fairlead_tls_certificate_start_timestamp_seconds",
        kind=_GAUGE,
        help="Start of the validity of a listener's certificate, in seconds since 1970.",
        labels=("listener",),
    ),
    MetricDefinition(
        name="fairlead_tls_reloads_total",
        kind=_COUNTER,
        help="Replacements of a listener's certificate without a restart.",
        labels=("listener",),
    ),
    MetricDefinition(
        name="fairlead_tls_reload_failures_total",
        kind=_COUNTER,
        help="Changed certificate files that were refused; the previous certificate stays in use.",
        labels=("listener",),
    ),
)
"""Catalogue of metrics, in the order of the reference page."""

PROCESS_METRICS: Final[tuple[MetricDefinition, ...]] = (
    MetricDefinition(
        name="process_cpu_seconds_total",
        kind=_COUNTER,
        help="Processor time of the process in user and system mode.",
    ),
    MetricDefinition(
        name="process_resident_memory_bytes",
        kind=_GAUGE,
        help="Resident memory of the process, including mapped pages of segments.",
    ),
    MetricDefinition(
        name="process_virtual_memory_bytes",
        kind=_GAUGE,
        help="Virtual memory of the process.",
    ),
    MetricDefinition(
        name="process_open_fds",
        kind=_GAUGE,
        help="Open files and connections.",
    ),
    MetricDefinition(
        name="process_max_fds",
        kind=_GAUGE,
        help="Files and connections that the process may have open.",
    ),
    MetricDefinition(
        name="process_start_time_seconds",
        kind=_GAUGE,
        help="Start time of the process, in seconds since 1970.",
    ),
)
"""Metrics that Prometheus' client libraries expose for every process under these names, on Linux."""
