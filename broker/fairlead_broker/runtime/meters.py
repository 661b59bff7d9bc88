"""Metrics of the runtime. Counting a batch costs one or two additions.

Values are counted per batch and per call, never per record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

PROCESS: Final = Path("/proc/self")
GROUPS: Final = Path("/sys/fs/cgroup")
UNLIMITED: Final = "max"


def used_bytes(process: Path = PROCESS) -> int:
    """Return the memory that the system cannot reclaim by dropping file pages; 0 if this number is unknown."""
    with suppress(OSError):
        _, resident, of_files, *_ = (process / "statm").read_text(encoding="ascii").split()
        return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_bytes(process: Path = PROCESS, groups: Path = GROUPS) -> int:
    """Return the smaller of the machine's memory and the lowest limit of the process's control groups."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(process, groups)])


def _limits(process: Path, groups: Path) -> Iterator[int]:
    for folder, name in _folders(process, groups):
        with suppress(OSError):
            text = (folder / name).read_text(encoding="ascii").strip()
            if text != UNLIMITED:
                yield int(text)


def _folders(process: Path, groups: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of every control group and the name of its limit file, from the innermost to the mount's root.

    In a container, the paths may be paths of the host, which do not exist in the container. The root of the mount
    exists in a container, and is the container's own control group.
    """
    text = ""
    with suppress(OSError):
        text = (process / "cgroup").read_text(encoding="utf-8")
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            yield root / folder, name


OK = "ok"
PARTITION = (
    "fairlead_partition_log_start_offset",
    "fairlead_partition_log_end_offset",
    "fairlead_partition_size_bytes",
    "fairlead_partition_damaged_ranges",
)
"""Gauges of each partition of which this broker has a replica."""
LEADERSHIP = (
    "fairlead_partition_leader_epoch",
    "fairlead_partition_in_sync_replicas",
    "fairlead_partition_replica_lag_records",
)
"""Gauges of each partition that this broker leads."""
WRITE_QUORUM = (
    "fairlead_quorum_voters",
    "fairlead_quorum_near",
    "fairlead_quorum_write",
    "fairlead_quorum_commit_lag_records",
)
"""Further gauges of each partition with a write quorum that this broker leads."""


class TopicMeters:
    """Counters and histograms of one topic."""

    __slots__ = (
        "_duplicates",
        "_group_batches",
        "_isr_expands",
        "_isr_shrinks",
        "_produced_bytes",
        "_read_bytes",
        "_records_in",
        "_records_out",
    )

    def __init__(self, telemetry: Telemetry, topic: str) -> None:
        self._records_in = self._records_out = self._produced_bytes = self._read_bytes = self._duplicates = 0
        for (name, *labels), read in TOPIC_COUNTERS.items():
            telemetry.metric(name).watch((topic, *labels), partial(read, self))
        self._isr_shrinks: Counter = telemetry.metric("fairlead_isr_shrinks_total")
        self._isr_expands: Counter = telemetry.metric("fairlead_isr_expands_total")
        self._group_batches: Histogram = telemetry.metric("fairlead_append_group_batches")

    def appended(self, batches: int, records: int, nbytes: int) -> None:
        """Count one group of appended batches."""
        self._group_batches.observe(batches)
        self._records_in += records
        self._produced_bytes += nbytes

    def repeated(self) -> None:
        """Count a batch that an earlier attempt has already stored."""
        self._duplicates += 1

    def read(self, records: int, nbytes: int) -> None:
        """Count records and bytes that a fetch returns from one partition."""
        self._records_out += records
        self._read_bytes += nbytes

    def isr_changed(self, *, joined: int, left: int) -> None:
        """Count replicas that joined or left the isr of a partition that this broker leads."""
        if joined:
            self._isr_expands.inc(joined)
        if left:
            self._isr_shrinks.inc(left)


TOPIC_COUNTERS: Final[Mapping[tuple[str, ...], Callable[[TopicMeters], int]]] = {
    ("fairlead_records_total", "in"): attrgetter("_records_in"),
    ("fairlead_records_total", "out"): attrgetter("_records_out"),
    ("fairlead_produce_bytes_total",): attrgetter("_produced_bytes"),
    ("fairlead_fetch_bytes_total",): attrgetter("_read_bytes"),
    ("fairlead_duplicate_batches_total",): attrgetter("_duplicates"),
}
"""Counters of each topic; the key is the name of the metric and the labels after the topic."""


class BrokerMeters:
    """Metrics of the whole broker."""

    __slots__ = (
        "_fetch_outcomes",
        "_fetch_reads",
        "_produce_outcomes",
        "_telemetry",
        "_topics",
    )

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._topics: dict[str, TopicMeters] = {}
        self._produce_outcomes: Counter = telemetry.metric("fairlead_produce_batches_total")
        self._fetch_outcomes: Counter = telemetry.metric("fairlead_fetch_partitions_total")
        self._fetch_reads: Histogram = telemetry.metric("fairlead_fetch_read_seconds")

    def topic(self, name: str) -> TopicMeters:
        """Return the metrics of a topic."""
        if name not in self._topics:
            self._topics[name] = TopicMeters(self._telemetry, name)
        return self._topics[name]

    def produced(self, answers: Iterable[object]) -> None:
        """Count the outcomes of a produce call."""
        _count_outcomes(self._produce_outcomes, answers)

    def fetched(self, answers: Iterable[object]) -> None:
        """Count the outcomes of a fetch call."""
        _count_outcomes(self._fetch_outcomes, answers)

    def fetch_read(self, seconds: float) -> None:
        """Record the duration of one read of a fetch call."""
        self._fetch_reads.observe(seconds)

    def watch_broker(
        self, data: Path, waiting: Callable[[], int], healthy: Callable[[], bool], release: str, python: str
    ) -> None:
        """Export gauges of long polls, disk space and health, memory and build, computed at each scrape."""
        metric = self._telemetry.metric
        metric("fairlead_storage_failed").set_function(lambda: not healthy())
        metric("fairlead_long_polls_waiting").set_function(waiting)
        metric("fairlead_disk_free_bytes").set_function(
            lambda: _volume(data).f_bavail * _volume(data).f_frsize
        )
        metric("fairlead_disk_size_bytes").set_function(
            lambda: _volume(data).f_blocks * _volume(data).f_frsize
        )
        metric("fairlead_memory_used_bytes").set_function(used_bytes)
        metric("fairlead_memory_limit_bytes").set_function(limit_bytes)
        metric("fairlead_build_info").labels(release, python).set(1)

    def watch_partition(
        self,
        topic: str,
        index: int,
        start_offset: Callable[[], int],
        end_offset: Callable[[], int],
        size_bytes: Callable[[], int],
        damaged_ranges: Callable[[], int],
    ) -> None:
        """Export start offset, end offset, size and damaged ranges of a partition, computed at each scrape."""
        for name, read in zip(PARTITION, (start_offset, end_offset, size_bytes, damaged_ranges), strict=True):
            self._telemetry.metric(name).watch((topic, str(index)), read)

    def watch_leadership(
        self,
        topic: str,
        index: int,
        leader_epoch: Callable[[], int],
        in_sync: Callable[[], int],
        lag: Callable[[], int],
    ) -> None:
        """Export leader epoch, replicas in sync and replica lag of a partition, computed at each scrape."""
        for name, read in zip(LEADERSHIP, (leader_epoch, in_sync, lag), strict=True):
            self._telemetry.metric(name).watch((topic, str(index)), read)

    def watch_quorum(
        self,
        topic: str,
        index: int,
        voters: Callable[[], int],
        near: Callable[[], int],
        write: Callable[[], int],
        commit_lag: Callable[[], int],
    ) -> None:
        """Export the gauges of a partition with a write quorum, computed at each scrape."""
        for name, read in zip(WRITE_QUORUM, (voters, near, write, commit_lag), strict=True):
            self._telemetry.metric(name).watch((topic, str(index)), read)

    def forget_leadership(self, topic: str, index: int) -> None:
        """Remove the leadership gauges of a partition that this broker no longer leads."""
        for name in (*LEADERSHIP, *WRITE_QUORUM):
            self._telemetry.metric(name).forget((topic, str(index)))

    def watch_replication(
        self, led: Callable[[], int], under_replicated: Callable[[], int], under_min_isr: Callable[[], int]
    ) -> None:
        """Export the numbers of led, under-replicated and under-min-isr partitions, counted at each scrape."""
        self._telemetry.metric("fairlead_leader_partitions").set_function(led)
        self._telemetry.metric("fairlead_under_replicated_partitions").set_function(under_replicated)
        self._telemetry.metric("fairlead_under_min_isr_partitions").set_function(under_min_isr)

    def watch_held(self, held: Callable[[], int]) -> None:
        """Export the number of batches that wait for earlier batches of their producer, counted at each scrape."""
        self._telemetry.metric("fairlead_held_batches").set_function(held)

    def watch_distrusted(self, refused: Callable[[], int], quarantined: Callable[[], int]) -> None:
        """Export the number of refused replicas and the number of quarantined replicas, counted at each scrape."""
        self._telemetry.metric("fairlead_refused_replicas").set_function(refused)
        self._telemetry.metric("fairlead_quarantined_replicas").set_function(quarantined)

    def deleted(self, reason: str, segments: int, nbytes: int) -> None:
        """Count segments deleted from the log of a partition that this broker leads."""
        self._telemetry.metric("fairlead_deleted_segments_total").labels(reason).inc(segments)
        self._telemetry.metric("fairlead_deleted_bytes_total").labels(reason).inc(nbytes)

    def forget_partition(self, topic: str, index: int) -> None:
        """Remove the gauges of a partition."""
        for name in PARTITION:
            self._telemetry.metric(name).forget((topic, str(index)))

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a topic; a new topic with the same name starts at zero."""
        self._topics.pop(topic, None)
        for name, *labels in TOPIC_COUNTERS:
            self._telemetry.metric(name).forget((topic, *labels))


def _volume(data: Path) -> os.statvfs_result:
    return os.statvfs(data)


def _count_outcomes(counter: Counter, answers: Iterable[object]) -> None:
    fine = 0
    for answer in answers:
        if isinstance(answer, ProblemError):
            counter.labels(answer.code).inc()
        else:
            fine += 1
    if fine:
        counter.labels(OK).inc(fine)


KINDS = ("clean", "unclean")


def election_counter(telemetry: Telemetry) -> Callable[[str, int], None]:
    """Return a function that counts elections by kind; the counters of both kinds exist from the start."""
    counter = telemetry.metric("fairlead_leader_elections_total")
    children = {kind: counter.labels(kind) for kind in KINDS}
    return lambda kind, count: children[kind].inc(count)


class VacancyMeters:
    """Metrics of the vacancies that this broker fills while it is the controller."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._vacancies = telemetry.metric("fairlead_quorum_vacant_partitions")
        self._missing = telemetry.metric("fairlead_quorum_missing_promises")
        self._seconds = telemetry.metric("fairlead_quorum_election_seconds")
        self._shown: set[BrokerId] = set()

    def observe(self, seconds: float) -> None:
        """Record the duration of a vacancy that was filled."""
        self._seconds.observe(seconds)

    def show(self, vacancies: int, missing: Mapping[BrokerId, int]) -> None:
        """Export the number of vacancies, and for each broker the number of vacancies that still need its answer."""
        self._vacancies.set(vacancies)
        for broker, count in missing.items():
            self._missing.labels(str(broker)).set(count)
        for broker in self._shown - missing.keys():
            self._missing.remove(str(broker))
        self._shown = set(missing)


def watch_controller(telemetry: Telemetry, controllership: Controllership) -> None:
    """Export the controller's gauges, computed at each scrape."""
    active = telemetry.metric("fairlead_controller_active")
    active.set_function(lambda: controllership.term is not None)
    telemetry.metric("fairlead_leaderless_partitions").set_function(lambda: controllership.leaderless)
    telemetry.metric("fairlead_reassigning_partitions").set_function(lambda: controllership.moving)
