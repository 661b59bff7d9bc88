"""Selection, start and end of a read, which `options` parses from the read's options without I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn, TypeAlias

from fairlead_api.timestamps import MICROSECONDS_PER_MILLISECOND, YEAR_10000_US

EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1
ASSIGN_FORM: Final = 'JSON such as {"flights": [0, 1]}'
OFFSETS_FORM: Final = f'JSON such as {{"flights": {{"0": 123, "1": {EARLIEST_NUMBER}}}}}, where {EARLIEST_NUMBER} means earliest and {LATEST_NUMBER} latest'  # noqa: E501

TIMES_FORM: Final = (
    'JSON such as {"flights": {"0": 1700000000000}}, in milliseconds since 1970, UTC; '
    "JSON must contain every partition"
)
TIMESTAMP_MS_MAX: Final = YEAR_10000_US // MICROSECONDS_PER_MILLISECOND - 1


class PositionError(ValueError):
    """The text of an option cannot be parsed; the message states the fault."""


class Edge(StrEnum):
    """The start or the end of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Position of the first record at or after a time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EachPartition:
    """Position given separately for each partition of the read: an offset, a time, or an edge of the log."""

    offsets: Mapping[tuple[str, int], int | Edge | AtTime]


Position: TypeAlias = Edge | AtTime | EachPartition


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Selects all partitions of the given topics, including partitions that are added later."""

    topics: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.topics)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Selects all partitions of the topics whose whole name matches the pattern, including topics created later."""

    pattern: str

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches the whole name of a topic."""
        return re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        return f"topics like {self.pattern}"


@dataclass(frozen=True, slots=True)
class Assign:
    """Selects only the given partitions."""

    partitions: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        return ", ".join(f"{topic}-{index}" for topic, each in self.partitions.items() for index in each)


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


def parse_topics(text: str) -> Subscribe:
    """Parse a comma-separated list of topics."""
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        _wrong("names no topic")
    return Subscribe(topics)


def parse_pattern(text: str) -> SubscribePattern:
    """Parse a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        _wrong(f"is not a regular expression: {error}")
    return SubscribePattern(text)


def parse_assign(text: str) -> Assign:
    """Parse a JSON object with a list of partitions for each topic."""
    document = _json_object(text)
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, indexes in sorted(document.items()):
        if not isinstance(indexes, list) or not indexes:
            _wrong(f"has {json.dumps(indexes)} for {topic}, which is not a list of partitions")
        for index in indexes:
            if type(index) is not int or index < 0:
                _wrong(f"has {json.dumps(index)} for {topic}, which is not a partition")
        partitions[topic] = tuple(sorted(set(indexes)))
    if not partitions:
        _wrong("names no partition")
    return Assign(partitions)


def parse_position(text: str) -> Edge | EachPartition:
    """Parse `earliest`, `latest`, or a JSON object with an offset for each partition."""
    if text.strip().lower() in Edge.__members__.values():
        return Edge(text.strip().lower())
    if not text.lstrip().startswith("{"):
        _wrong(f"is {text!r}")
    return EachPartition(
        {place: _offset(f"{place[0]}-{place[1]}", value) for place, value in _by_partition(text).items()}
    )


def parse_times(text: str) -> EachPartition:
    """Parse a JSON object with a time for each partition, in milliseconds since 1970."""
    times: dict[tuple[str, int], AtTime] = {}
    for place, value in _by_partition(text).items():
        if type(value) is not int or not 0 <= value <= TIMESTAMP_MS_MAX:
            _wrong(f"has {json.dumps(value)} for {place[0]}-{place[1]}")
        times[place] = AtTime(value)
    if not times:
        _wrong("names no partition")
    return EachPartition(times)


def _by_partition(text: str) -> dict[tuple[str, int], object]:
    """Return the values of a JSON object by topic and partition."""
    values: dict[tuple[str, int], object] = {}
    for topic, each in sorted(_json_object(text).items()):
        if not isinstance(each, dict):
            _wrong(f"has {json.dumps(each)} for {topic}")
        for index, value in each.items():
            if not index.isdecimal():
                _wrong(f"has the partition {index!r} of {topic}")
            values[topic, int(index)] = value
    return values


def _offset(place: str, value: object) -> int | Edge:
    if type(value) is not int or value < EARLIEST_NUMBER:
        _wrong(f"has {json.dumps(value)} for {place}")
    if value == EARLIEST_NUMBER:
        return Edge.EARLIEST
    return Edge.LATEST if value == LATEST_NUMBER else value


def _json_object(text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except ValueError as error:
        _wrong(f"is not JSON: {error}")
    if not isinstance(document, dict):
        _wrong(f"is {json.dumps(document)}, which is not a JSON object")
    return document


def _wrong(what: str) -> NoReturn:
    raise PositionError(what)
