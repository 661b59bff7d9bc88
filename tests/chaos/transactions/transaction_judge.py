"""The comparison of committed records with what was written, at the end of `transaction_kills.py`."""

from __future__ import annotations

from collections import Counter
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Final

import delayed_calls
import plain_transactions
from committed_reads import ends, open_transactions, read
from fairlead import Admin
from pricing_process import GROUP, ORDERS, PARTITIONS, RESULTS
from spark_copies import COPIES

if TYPE_CHECKING:
    from transaction_kills import Storm


DELAYED: Final = tuple(product(delayed_calls.TOPICS, range(delayed_calls.PARTITIONS)))
PLAIN: Final = tuple(product([plain_transactions.TOPIC], range(plain_transactions.PARTITIONS)))
PLACES: Final = (*product((*RESULTS, COPIES), range(PARTITIONS)), *DELAYED, *PLAIN)
"""Partitions with records of transactions, except those of changed topics."""


async def judge(this: Storm) -> dict[str, Any]:
    """Return what readers find after the end of the load."""
    transactions_open = await open_transactions(this.cluster, [*PLACES, *this.changed.places()])
    checked = await this.delayed.report(await ends(this.cluster, DELAYED))
    plain = await this.plain.report(await ends(this.cluster, PLAIN))
    delayed = await read(this.cluster, DELAYED)
    orders = await read(this.cluster, product([ORDERS], range(PARTITIONS)))
    results = await read(this.cluster, product(RESULTS, range(PARTITIONS)))
    copies = await read(this.cluster, product([COPIES], range(PARTITIONS)))
    async with Admin(this.cluster.urls) as admin:
        offsets = {each.partition: each.offset for each in (await admin.group_offsets(GROUP)).values()}
    counted = {
        topic: Counter(value for (each, _), values in results.items() if each == topic for value in values)
        for topic in RESULTS
    }
    wanted = {value for values in orders.values() for value in values}
    return {
        "orders": this.sent,
        "orders_missing": this.sent - len(wanted),
        "results_missing": sum(len(wanted - found.keys()) for found in counted.values()),
        "results_twice": sum(each > 1 for found in counted.values() for each in found.values()),
        "results_without_order": sum(len(found.keys() - wanted) for found in counted.values()),
        "partitions_seen_otherwise": [
            f"{topic}-{number}"
            for (topic, number), values in this.seen.items()
            if values != results[topic, number][: len(values)]
        ],
        "partitions_with_wrong_offsets": [
            number for (_, number), values in orders.items() if offsets.get(number) != len(values)
        ],
        **this.copies.wrong(wanted, Counter(chain.from_iterable(copies.values()))),
        "transactions_open": transactions_open,
        "transactions_with_late_calls": len(this.delayed.answers),
        "changed_topics": this.changed.counts(),
        "changed_topics_unlike_answers": await this.changed.wrong(),
        **this.delayed.wrong(delayed),
        "history_anomalies": checked.anomalies if checked.verdict != "valid" else {},
        "history_undecided": checked.undecided,
        "history_allowed": checked.allowed,
        "late_calls": dict(sorted(this.delayed.counts.items())),
        "plain": dict(sorted(this.plain.counts.items())),
        "plain_anomalies": plain.anomalies if plain.verdict != "valid" else {},
        "plain_undecided": plain.undecided,
        "plain_allowed": plain.allowed,
    }


WRONG: Final = (
    "orders_missing", "results_missing", "results_twice", "results_without_order", "copies_unfinished",
    "copies_missing", "copies_twice", "copies_without_order", "partitions_seen_otherwise",
    "partitions_with_wrong_offsets", "transactions_open", "delayed_torn", "delayed_twice", "delayed_answered_both",
    "delayed_lost", "delayed_aborted_read", "history_anomalies", "history_undecided", "plain_anomalies",
    "plain_undecided", "changed_topics_unlike_answers", "faults_missing",
)  # fmt: skip
