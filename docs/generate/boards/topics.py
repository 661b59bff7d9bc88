"""The topics: what is written and read, how much is stored, how well it is replicated."""

from __future__ import annotations

from typing import Final

from boards.vocabulary import (
    CLUSTER,
    CLUSTER_NAME,
    NAMESPACE,
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
    description="Traffic, size and replication of topics and their partitions.",
    variables=(NAMESPACE, CLUSTER_NAME, TOPIC),
    rows=(
        Row(
            "Size",
            (
                number(
                    "Topics",
                    "Topics with a partition that is led.",
                    f"count(count by (topic) (fairlead_partition_log_end_offset{{{TOPICS}}}))",
                    bad_from=None,
                ),
                number(
                    "Partitions",
                    "Partitions that are led.",
                    f"count(count by ({PARTITION}) (fairlead_partition_log_end_offset{{{TOPICS}}}))",
                    bad_from=None,
                ),
                number(
                    "Records stored",
                    "From the oldest to the newest offset.",
                    f"sum(fairlead_partition_log_end_offset{{{TOPICS}}}"
                    f" - fairlead_partition_log_start_offset{{{TOPICS}}})",
                    bad_from=None,
                ),
                number(
                    "Bytes stored",
                    "Of the leaders' copies.",
                    f"sum(fairlead_partition_size_bytes{{{TOPICS}}})",
                    unit="bytes",
                    bad_from=None,
                ),
                number(
                    "Fewest in-sync replicas",
                    "Of any partition, its leader included.",
                    f"min(fairlead_partition_in_sync_replicas{{{TOPICS}}})",
                    bad_from=None,
                ),
                number(
                    "Damaged ranges of topics",
                    "Ranges that cannot be read and whose loss nobody has accepted.",
                    f"sum(fairlead_partition_damaged_ranges{{{TOPICS}}})",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Records appended",
                    "By topic.",
                    "cps",
                    per_second("fairlead_records_total", f'{TOPICS}, direction="in"', "topic", "{{topic}}"),
                ),
                graph(
                    "Records read",
                    "Records answered to readers, by topic; each group counts.",
                    "cps",
                    per_second("fairlead_records_total", f'{TOPICS}, direction="out"', "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes appended",
                    "As stored, by topic.",
                    "Bps",
                    per_second("fairlead_produce_bytes_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes read",
                    "As stored, by topic.",
                    "Bps",
                    per_second("fairlead_fetch_bytes_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Outcomes of produce",
                    "Batches by outcome, of the whole cluster: ok or the code of the problem.",
                    "cps",
                    per_second("fairlead_produce_batches_total", CLUSTER, "code", "{{code}}"),
                ),
                graph(
                    "Outcomes of fetch",
                    "Partitions asked for by outcome, of the whole cluster: ok or the code of the problem.",
                    "cps",
                    per_second("fairlead_fetch_partitions_total", CLUSTER, "code", "{{code}}"),
                ),
                graph(
                    "Duplicate batches",
                    "Repeated batches of idempotent producers that were answered again and not stored again.",
                    "cps",
                    per_second("fairlead_duplicate_batches_total", TOPICS, "topic", "{{topic}}"),
                ),
                graph(
                    "Bytes by partition",
                    "The ten partitions with the most bytes; one far above the others has a hot key.",
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
                    "Offset that the next record of a partition gets.",
                    "short",
                    (
                        f"max by ({PARTITION}) (fairlead_partition_log_end_offset{{{TOPICS}}})",
                        "{{topic}}-{{partition}}",
                    ),
                ),
                graph(
                    "Oldest offsets",
                    "Offset of the oldest record that is still there; it rises as retention deletes.",
                    "short",
                    (
                        f"max by ({PARTITION}) (fairlead_partition_log_start_offset{{{TOPICS}}})",
                        "{{topic}}-{{partition}}",
                    ),
                ),
                graph(
                    "In-sync replicas",
                    "The fewest of any partition of the topic.",
                    "short",
                    (f"min by (topic) (fairlead_partition_in_sync_replicas{{{TOPICS}}})", "{{topic}}"),
                ),
                graph(
                    "Lag of the slowest follower",
                    "Records behind the leader's end, the most of any partition of the topic.",
                    "short",
                    (f"max by (topic) (fairlead_partition_replica_lag_records{{{TOPICS}}})", "{{topic}}"),
                ),
            ),
        ),
    ),
)
