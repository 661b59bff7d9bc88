"""A streaming query that copies orders to another topic by the sink of Spark with `exactlyOnce`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from chaos_cluster import ChaosCluster, pause
from killed_queries import FINISH_SECONDS_MAX, READY_SECONDS_MAX, Driver
from pricing_process import ORDERS

COPIES: Final = "copies"


class SparkCopies:
    """Successive drivers of one query. No query runs before `start`."""

    def __init__(self, cluster: ChaosCluster, counts: Counter[str]) -> None:
        """`counts` gets the number of drivers, and of restarts of the query after an error."""
        self._cluster = cluster
        self._counts = counts
        self._driver: Driver | None = None
        self._is_over = False
        self._failure: str | None = None
        """Last output of a driver that did not copy all orders."""

    async def start(self) -> None:
        """Start the query, and wait until it has read orders."""
        driver = self._begin()
        is_reading = await asyncio.to_thread(driver.wait_for, "reading", 1, READY_SECONDS_MAX)
        assert is_reading, f"the query does not read: {driver.last_output()}"

    async def run(self) -> None:
        """Start the driver again whenever it has ended, until the query is finished."""
        while not self._is_over:
            if self._driver is not None and self._driver.events["ended"]:
                self._begin()
            await pause(0.2)

    async def kill(self) -> None:
        """Kill the driver; `run` starts it again."""
        assert self._driver is not None, "the query was started"
        await asyncio.to_thread(self._driver.kill)

    async def finish(self) -> None:
        """Kill the driver, and let another driver copy up to the end of the orders."""
        self._is_over = True
        if self._driver is not None:
            driver = self._begin(finish=True)
            if not await asyncio.to_thread(driver.wait_for, "finished", 1, FINISH_SECONDS_MAX):
                self._failure = driver.last_output()
            self.end()

    def end(self) -> None:
        """Kill the driver if there is one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.kill()
            self._counts["query_restarts"] += driver.events["restarted"]

    def wrong(self, orders: set[bytes], copies: Counter[bytes]) -> dict[str, Any]:
        """Return how the copies differ from the orders; without a query, there are no copies."""
        if not self._counts["drivers"]:
            orders = set()
        return {
            "copies_unfinished": self._failure,
            "copies_missing": len(orders - copies.keys()),
            "copies_twice": sum(each > 1 for each in copies.values()),
            "copies_without_order": len(copies.keys() - orders),
        }

    def _begin(self, *, finish: bool = False) -> Driver:
        self.end()
        settings = {
            "bootstrap": ",".join(self._cluster.urls),
            "folder": str(self._cluster.folder),
            "topic": ORDERS,
            "once": COPIES,
            "sinks": ["once"],
            "finish": finish,
        }
        self._driver = driver = Driver(settings, self._cluster.folder / "driver.log")
        self._counts["drivers"] += 1
        return driver
