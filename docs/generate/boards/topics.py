"""Board with the traffic, the size, the replication and the links of topics."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import (
    CLUSTER,
    CLUSTER_NAME,
    NAMESPACE,
    PER_SECOND,
    Board,
    Row,
    Variable,
    graph,
    number,
    per_second,
)

TOPIC: Final = Variable(
    name="topic",
    label="Topic",
    query=f"label_values(fairlead_partition_log_end_offset{{{CLUSTER}}}, topic)",
    several=True,
)
TOPICS: Final = f'{CLUSTER}, topic=~"$topic"'
PARTITION: Final = "topic, partition"

BOARD: Final = Board(
    name="topics",
    title="Fairlead / Topics",
    description="Traffic, size, replication and links of topics and their partitions.",
    variables=(NAMESPACE, CLUSTER_NAME, TOPIC),
    rows=(
        Row(
            "Size",
            (
                number(
                    "Topics",
                    "Topics with at least one partition that has a leader.",
                    f"count(count by (topic) (fairlead_partition_log_end_offset{{{TOPICS}}}))",
                    bad_from=None,
                ),
                number(
                    "Partitions",
                    "Partitions that have a leader.",
                    f"count(count by ({PARTITION}) (fairlead_partition_log_end_offset{{{TOPICS}}}))",
                    bad_from=None,
                ),
                number(
                    "Records stored",
                    "Number of offsets from the oldest to the newest record.",
                    f"sum(fairlead_partition_log_end_offset{{{TOPICS}}}"
                    f" - fairlead_partition_log_start_offset{{{TOPICS}}})",
                    bad_from=None,
                ),
                number(
                    "Bytes stored",
                    "Bytes of the leaders' replicas.",
                    f"sum(fairlead_partition_size_bytes{{{TOPICS}}})",
                    unit="bytes",
                    bad_from=None,
                ),
                number(
                    "Fewest in-sync replicas",
                    "Smallest number of in-sync replicas of any partition, including its leader.",
                    f"min(fairlead_partition_in_sync_replicas{{{TOPICS}}})",
                    bad_from=None,
                ),
                number(
                    "Damaged ranges of topics",
                    "Ranges of offsets that cannot be read and whose loss has not been accepted.",
                    f"sum(fairlead_partition_damaged_ranges{{{TOPICS}}})",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Records appended",
                    "Records appended, by topic.",
                    "cps",
                    per_second("fairlead_records_total", f'{TOPICS}, direction="in"', "topic", "{{topic}}"),
                ),
                graph(
                    "Records read",
                    "Records sent to consumers, by topic; records are counted for each group.",
                    "cps",
                    per_second("fairlead_records_total", f'{TOPICS}, direction="out"', "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes appended",
                    "Bytes of appended batches in their stored size, by topic.",
                    "Bps",
                    per_second("fairlead_produce_bytes_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes read",
                    "Bytes of batches sent to consumers in their stored size, by topic.",
                    "Bps",
                    per_second("fairlead_fetch_bytes_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Outcomes of produce",
                    "Produced batches of the whole cluster by outcome: ok or a problem code.",
                    "cps",
                    per_second("fairlead_produce_batches_total", CLUSTER, "code", "{{code}}"),
                ),
                graph(
                    "Outcomes of fetch",
                    "Fetched partitions of the whole cluster by outcome: ok or a problem code.",
                    "cps",
                    per_second("fairlead_fetch_partitions_total", CLUSTER, "code", "{{code}}"),
                ),
                graph(
                    "Duplicate batches",
                    "Repeated batches of idempotent producers, which were acknowledged but not stored again.",
                    "cps",
                    per_second("fairlead_duplicate_batches_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes by partition",
                    "The ten partitions with the most bytes; a partition far above the others may have a hot key.",
                    "bytes",
                    (
                        f"topk(10, max by ({PARTITION}) (fairlead_partition_size_bytes{{{TOPICS}}}))",
                        "{{topic}}-{{partition}}",
                    ),
                ),
            ),
        ),
        Row(
            "Offsets and replicas",
            (
                graph(
                    "Newest offsets",
                    "Offset of the next record of a partition.",
                    "short",
                    (
                        f"max by ({PARTITION}) (fairlead_partition_log_end_offset{{{TOPICS}}})",
                        "{{topic}}-{{partition}}",
                    ),
                ),
                graph(
                    "Oldest offsets",
                    "Offset of the oldest remaining record, which rises when retention deletes segments.",
                    "short",
                    (
                        f"max by ({PARTITION}) (fairlead_partition_log_start_offset{{{TOPICS}}})",
                        "{{topic}}-{{partition}}",
                    ),
                ),
                graph(
                    "In-sync replicas",
                    "Smallest number of in-sync replicas among the partitions of a topic.",
                    "short",
                    (f"min by (topic) (fairlead_partition_in_sync_replicas{{{TOPICS}}})", "{{topic}}"),
                ),
                graph(
                    "Near voters of write quorums",
                    "Smallest number of near voters above the write quorum; below 0, acks=all is refused.",
                    "short",
                    (
                        f"min by (topic) (fairlead_quorum_near{{{TOPICS}}} - fairlead_quorum_write{{{TOPICS}}})",
                        "{{topic}}",
                    ),
                ),
                graph(
                    "Lag of commits of write quorums",
                    "Largest number of records that too few voters have stored, and number of voters.",
                    "short",
                    (f"max by (topic) (fairlead_quorum_commit_lag_records{{{TOPICS}}})", "{{topic}} lag"),
                    (f"min by (topic) (fairlead_quorum_voters{{{TOPICS}}})", "{{topic}} voters"),
                ),
                graph(
                    "Lag of the slowest follower",
                    "Largest number of records by which a follower lags behind, among the partitions of a topic.",
                    "short",
                    (f"max by (topic) (fairlead_partition_replica_lag_records{{{TOPICS}}})", "{{topic}}"),
                ),
            ),
        ),
        Row(
            "Links",
            (
                graph(
                    "Lag of mirrors",
                    "Largest number of records of the source that a partition of a mirror lacks.",
                    "short",
                    (
                        f"max by (link, topic) (fairlead_link_lag_records{{{TOPICS}}})",
                        "{{link}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag of mirrors in seconds",
                    "Time since a mirror last had every record of its source.",
                    "s",
                    (
                        f"max by (link, topic) (fairlead_link_lag_seconds{{{TOPICS}}})",
                        "{{link}} {{topic}}",
                    ),
                ),
                graph(
                    "Copied bytes of mirrors",
                    "Bytes of batches that mirrors copy from their sources.",
                    "Bps",
                    (
                        f"sum by (link, topic) (rate(fairlead_link_fetched_bytes_total{{{TOPICS}}}{PER_SECOND}))",
                        "{{link}} {{topic}}",
                    ),
                ),
                graph(
                    "Missing records of mirrors",
                    "Records that a mirror skipped or dropped because its source had deleted or lost them.",
                    "cps",
                    (
                        f"sum by (link, topic) (rate(fairlead_link_skipped_records_total{{{TOPICS}}}{PER_SECOND}))",
                        "{{link}} {{topic}} skipped",
                    ),
                    (
                        f"sum by (link, topic) (rate(fairlead_link_truncated_records_total{{{TOPICS}}}{PER_SECOND}))",
                        "{{link}} {{topic}} dropped",
                    ),
                ),
                graph(
                    "Topics of links by state",
                    "Topics of each link that are mirrored, blocked, being promoted or promoted.",
                    "short",
                    (f"sum by (link, state) (fairlead_link_topics{{{CLUSTER}}})", "{{link}} {{state}}"),
                ),
                graph(
                    "Sources of links",
                    "Whether the source of a link answers (1 or 0), and failed fetches per second.",
                    "short",
                    (
                        f"min by (link) (fairlead_link_source_reachable{{{CLUSTER}}})",
                        "{{link}} reachable",
                    ),
                    (
                        f"sum by (link) (rate(fairlead_link_fetch_failures_total{{{CLUSTER}}}{PER_SECOND}))",
                        "{{link}} failed fetches",
                    ),
                ),
            ),
        ),
    ),
)
