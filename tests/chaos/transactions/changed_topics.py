"""Transactions with records in two topics, one of which is deleted before the commit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

from chaos_cluster import ChaosCluster
from fairlead import Admin, Producer
from fairlead.errors import FairleadError

KEPT_TOPIC: Final = "kept"
"""Topic that is not deleted, with a record of each transaction."""


class DeletedTopics:
    """Transactions with deleted topics, and their outcomes."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._outcomes: dict[bytes, bool | None] = {}
        """Whether each transaction was committed, by the value of its records; None if unknown."""

    async def delete(self) -> None:
        """Delete a topic while a transaction is open in it, and commit the transaction."""
        number = len(self._outcomes)
        value, topic = b"%d" % number, f"deleted-{number}"
        self._outcomes[value] = None
        urls = self._cluster.urls
        async with (
            Admin(urls) as admin,
            Producer(urls, transactional=True, transaction_timeout="10s") as producer,
        ):
            await admin.create_topic(topic, replication_factor=len(self._cluster.nodes))
            transaction = producer.transaction()
            # A broker that knows of the deletion refuses the commit.
            with suppress(FairleadError):
                async with transaction:
                    for each in (topic, KEPT_TOPIC):
                        await transaction.send_and_wait(each, value)
                    await admin.delete_topic(topic)
            self._outcomes[value] = transaction.is_committed

    def counts(self) -> dict[str, int]:
        """Return the number of transactions with each outcome."""
        names = {True: "committed", False: "aborted", None: "unknown"}
        return dict(Counter(names[outcome] for outcome in self._outcomes.values()))

    def wrong(self, values: list[bytes]) -> list[int]:
        """Return the transactions whose records in the kept topic contradict their outcomes."""
        found = Counter(values)
        return [
            int(value)
            for value, outcome in self._outcomes.items()
            if found[value] not in ((0, 1) if outcome is None else (int(outcome),))
        ]
