"""A worker that joins the group for five of every ten seconds, so that partitions change hands between transactions."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import Final

from chaos_cluster import ChaosCluster, pause
from pricing_process import WORKER, PricingProcess

VISIT_SECONDS: Final = 5.0
"""Time for which the worker is a member, and time between two visits."""


class VisitingWorker:
    """A worker that joins and leaves again and again."""

    def __init__(self, cluster: ChaosCluster, counts: Counter[str]) -> None:
        """`counts` gets the number of completed `visits`, each of which causes two rebalances."""
        self.process = PricingProcess(cluster.folder, cluster.urls, f"{WORKER}visitor")
        self.is_over = False
        self._counts = counts

    async def run(self) -> None:
        """Join and leave until `is_over` is set."""
        while not self.is_over:
            self.process.start()
            await pause(VISIT_SECONDS)
            # A worker that cannot leave within a minute, because brokers are down, is killed.
            with suppress(subprocess.TimeoutExpired):
                await self.process.end(signal.SIGINT)
            self._counts["visits"] += 1
            await pause(VISIT_SECONDS)
