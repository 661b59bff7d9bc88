"""Sizes and rates in a picture of the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead_api.bodies.metadata import Metadata, PartitionMetadata, TopicMetadata, Versions
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.bodies.security import WhoAmI
from fairlead_console.observation.history import grown
from fairlead_console.observation.picture import (
    LogEnds,
    Picture,
    Topic,
    byte_rates,
    ends_with_last_known,
    outlined,
    silent_brokers,
)


def topic(ends: LogEnds, sizes: dict[int, int], leader: int | None = 1) -> Topic:
    """Return a topic of one partition."""
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=0, replicas=[1, 2], isr=[1], elr=[], offline=[]
    )
    description = outlined(TopicMetadata(name="orders", topic_id="x", partitions=[partition]))
    return Topic(description, [partition], {0: ends}, {0: 5.0}, {0: sizes} if sizes else {}, {0: 700.0})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((LogEnds(0, 10), {1: 1000, 2: 1000}), (LogEnds(0, 20), {1: 3000, 2: 1000}), 200.0),
        ((LogEnds(0, 100), {1: 10_000}), (LogEnds(80, 110), {1: 3000}), 100.0),
        ((LogEnds(0, 100), {1: 10_000}), (LogEnds(100, 100), {1: 0}), 0.0),
        ((LogEnds(0, 10), {}), (LogEnds(0, 20), {1: 3000}), 0.0),
    ],
    ids=["grown", "deleted and grown", "emptied", "unknown before"],
)
def test_the_bytes_of_a_second_are_those_of_new_records(
    before: tuple[LogEnds, dict[int, int]], now: tuple[LogEnds, dict[int, int]], expected: float
) -> None:
    """The rate counts a single copy of the records, and a deletion of old records does not reduce it."""
    assert sum(byte_rates(topic(*before), topic(*now), 10.0).values()) == pytest.approx(expected)


def test_the_size_of_a_log_is_that_of_its_leader() -> None:
    """The log size is that of the leader, or the largest without a leader; the topic's size counts all replicas."""
    sizes = {1: 100, 2: 300}

    assert topic(LogEnds(0, 1), sizes).log_sizes == {0: 100}
    assert topic(LogEnds(0, 1), sizes, leader=None).log_sizes == {0: 300}
    assert topic(LogEnds(0, 1), sizes).size == 400
    assert topic(LogEnds(0, 1), {}).log_sizes == {}


def picture(topics: list[Topic], reports: dict[int, BrokerReport]) -> Picture:
    """Return a picture of a cluster."""
    versions = Versions(
        release="0", api=[], batch_formats=[], codecs=[], cluster_id="x", cluster="c", feature_level=1
    )
    caller = WhoAmI(
        principal="", groups=[], source="", token_id=None, expires_at=None, superuser=False, mode="open"
    )
    listed = [TopicMetadata(name=each.name, topic_id="x", partitions=each.partitions) for each in topics]
    metadata = Metadata(cluster_id="x", controller=1, brokers=[], topics=listed)
    return Picture(0.0, versions, caller, metadata, [], {each.name: each for each in topics}, reports=reports)


def test_the_rate_of_a_broker_is_that_of_the_partitions_that_it_leads() -> None:
    """Records and bytes count for the leader; a partition without a leader counts for no broker."""
    led = picture([topic(LogEnds(0, 1), {})], {})
    unled = picture([topic(LogEnds(0, 1), {}, leader=None)], {})

    assert (led.broker_rates, led.broker_byte_rates) == ({1: 5.0}, {1: 700.0})
    assert (unled.broker_rates, unled.broker_byte_rates) == ({}, {})
    assert (led.rate, led.byte_rate) == (5.0, 700.0)


def test_full_disks_do_not_count_as_disks_with_little_space() -> None:
    """A disk without space for a batch is full, one below 15 % free has little space, and an unknown one neither."""
    mib = 1024 * 1024
    free = {0: 500 * mib, 1: 100 * mib, 2: 0, 3: 15 * mib, 4: None}
    reports = {
        broker: BrokerReport(broker=broker, disk_total_bytes=1000 * mib, disk_free_bytes=nbytes)
        for broker, nbytes in free.items()
    }
    seen = picture([], reports)

    assert (seen.full_disks, seen.low_disks) == ([2, 3], [1])


def test_a_broker_with_an_empty_report_is_silent() -> None:
    """The partitions that a silent broker leads are those without an answer."""
    reports = {1: BrokerReport(broker=1), 2: BrokerReport(broker=2, disk_total_bytes=9, disk_free_bytes=1)}
    silent = silent_brokers(reports.values())
    seen = replace(picture([topic(LogEnds(0, 1), {})], reports), silent=silent)

    assert silent == {1}
    assert seen.unanswered("orders") == {0}
    assert seen.unanswered("absent") == frozenset()
    assert replace(seen, silent=frozenset({2})).unanswered("orders") == frozenset()


def test_offsets_without_an_answer_are_the_last_known() -> None:
    """An answer replaces an earlier one, and the offsets of a topic do not belong to a new topic of its name."""
    before = {"orders": topic(LogEnds(0, 5), {}), "trips": topic(LogEnds(0, 5), {})}
    names = {"orders": "x", "trips": "y", "new": "z"}
    listed = [TopicMetadata(name=name, topic_id=each, partitions=[]) for name, each in names.items()]
    metadata = Metadata(cluster_id="x", controller=1, brokers=[], topics=listed)

    assert ends_with_last_known({}, before, metadata) == {
        "orders": {0: LogEnds(0, 5)},
        "trips": {},
        "new": {},
    }
    assert ends_with_last_known({"orders": {0: LogEnds(0, 7)}}, before, metadata)["orders"] == {
        0: LogEnds(0, 7)
    }


def test_a_rate_needs_two_rounds_and_a_counter_that_grew() -> None:
    """Counters that fell, that did not grow, or that are new have no rate."""
    assert grown({0: 10, 1: 10, 2: 10}, {0: 30, 1: 10, 2: 5, 3: 7}, 10.0) == {0: 2.0}
    assert grown({0: 10}, {0: 30}, 0.0) == {}
