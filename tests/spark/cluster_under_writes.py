"""A cluster of processes that a producer writes to while its brokers are killed, and counters of the values."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_cluster import ChaosCluster, chaos_cluster, pause
from fairlead.blocking import Admin, Producer
from fairlead.blocking.loop_thread import LoopThread
from fairlead.errors import InvalidConfigError

if TYPE_CHECKING:
    from fairlead_api.bodies.metadata import PartitionMetadata

TOPIC = "flights"
SECONDS_MAX = 180.0


class Counted:
    """Received values, with a method that waits for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.values: Counter[int] = Counter()

    def add(self, values: list[int]) -> None:
        """Add values."""
        with self._changed:
            self.values.update(values)
            self._changed.notify_all()

    def wait(self, met: Callable[[Counter[int]], bool], what: str) -> None:
        """Wait until the values satisfy the condition, or fail after the time limit."""
        with self._changed:
            assert self._changed.wait_for(lambda: met(self.values), SECONDS_MAX), what


@contextmanager
def running(folder: Path) -> Iterator[tuple[LoopThread, ChaosCluster]]:
    """Run three brokers and an etcd as processes that can be killed and restarted."""
    thread, stack = LoopThread("brokers"), AsyncExitStack()
    thread.start()
    try:
        yield thread, thread.run(stack.enter_async_context(chaos_cluster(folder)))
    finally:
        thread.run(stack.aclose())
        thread.stop()


@contextmanager
def beside(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Run work in a thread until the block ends; the end of the block sets the event that the work checks."""
    thread = threading.Thread(target=work, name=work.__name__)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def writing(bootstrap: str, acknowledged: Counted) -> Iterator[None]:
    """Write numbers continuously, and count acknowledged numbers."""
    ended = threading.Event()

    def write() -> None:
        """Send a hundred numbers at a time."""
        with Producer(bootstrap) as producer:
            for first in itertools.count(0, 100):
                numbers = list(range(first, first + 100))
                deliveries = [producer.send(TOPIC, b"%d" % number) for number in numbers]
                for delivery in deliveries:
                    delivery.result()
                acknowledged.add(numbers)
                if ended.wait(0.3):
                    return

    with beside(write, ended):
        yield


def create_topic(thread: LoopThread, bootstrap: str) -> None:
    """Create the topic when all three brokers are registered."""
    with Admin(bootstrap) as admin:
        while True:
            try:
                admin.create_topic(
                    TOPIC, partitions=3, replication_factor=3, config={"min.insync.replicas": 2}
                )
            except InvalidConfigError:
                thread.run(pause(0.5))
            else:
                return


def in_sync(partition: PartitionMetadata) -> bool:
    """Return whether a partition has its leader and all replicas in sync."""
    return partition.leader is not None and len(partition.isr) == 3
