"""Page of the clients and programs that were run against brokers over Kafka's protocol."""

from __future__ import annotations

import json
from pathlib import Path

from page_text import code, table

PROOFS = Path(__file__).resolve().parents[2] / "proof"
TEXT = """<!-- Generated from the records kafka-clients, kafka-failures and kafka-suites in docs/proof. -->

# Kafka's clients that were tried

Clients and tools that `make prove PROVE=kafka-clients` runs against {brokers} brokers with a
[Kafka listener](../how-to/kafka-clients.md), the steps that each program completed without an error, and the message of
each program that failed or could not run. Each client has its own topic, whose partitions have three replicas, and
produces {count} records with each codec that it supports. This record is from {date}.

"""

FAILURES_TEXT = """
## Restarts and kills of brokers under producers

`make prove PROVE=kafka-failures` runs idempotent producers that send {rate} records in a second with `acks=all` to four
partitions with three replicas. At the same time, brokers are restarted gracefully one after another, or the leader of
a partition is killed with SIGKILL. An acknowledged record that is not stored at its offset counts as lost; a
record that is stored more than once counts as repeated.

"""
SUITES_TEXT = """
## Integration tests of clients

`make prove PROVE=kafka-suites` runs the integration tests of clients against a broker: those of kafka-python, from its
source distribution, and those of franz-go that need a broker, from its module, with {records} records in each chain of
consumers. Each test that fails has a reason in the table. A further failure fails the proof, and so does a test in the
table that passes, so the table can only become shorter. The source distribution of aiokafka contains no tests, and the
tests of librdkafka, which must be compiled, are not run.

"""
COLUMNS = {
    "producer": "producer",
    "fault": "fault",
    "faults": "times",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "repeated": "repeated",
    "given_up": "given up by the producer",
    "longest_pause_seconds": "longest time without an acknowledgement, s",
}


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    record = json.loads((PROOFS / "kafka-clients.json").read_text(encoding="utf-8"))
    counts = record["counts"]
    rows = [
        [
            each["client"],
            each["version"],
            "; ".join(each["steps"]) or "nothing",
            "" if each["passed"] else code(each["message"]),
        ]
        for each in counts["clients"]
    ]
    text = TEXT.format(
        brokers=counts["brokers"],
        count=counts["records_for_each_codec"],
        date=record["made_at"].partition("T")[0],
    )
    clients = table(["client", "version", "works", "does not work"], rows)
    failures = json.loads((PROOFS / "kafka-failures.json").read_text(encoding="utf-8"))["counts"]
    runs = [[str(each[name]) for name in COLUMNS] for each in failures["runs"]]
    restarts = FAILURES_TEXT.format(rate=failures["records_per_second"])
    return {
        "kafka-programs.md": text + clients + restarts + table(list(COLUMNS.values()), runs) + _suites(),
    }


def _suites() -> str:
    """Return the section on the integration tests of clients."""
    counts = json.loads((PROOFS / "kafka-suites.json").read_text(encoding="utf-8"))["counts"]
    suites = counts["suites"]
    totals = [
        [
            each["suite"],
            each["version"],
            *map(str, (each["passed"], len(each["skipped"]), len(each["failed"]))),
        ]
        for each in suites
    ]
    failed = [
        [suite["suite"], code(name), each["reason"], code(each["message"])]
        for suite in suites
        for name, each in sorted(suite["failed"].items())
    ]
    skipped = [
        [suite["suite"], code(name), text]
        for suite in suites
        for name, text in sorted(suite["skipped"].items())
    ]
    return (
        SUITES_TEXT.format(records=f"{counts['records_in_a_chain']:,}")
        + table(["suite", "version", "passed", "skipped", "failed"], totals)
        + "\n"
        + table(["suite", "failed test", "reason", "message"], failed)
        + "\n"
        + table(["suite", "skipped test", "reason"], skipped)
    )
