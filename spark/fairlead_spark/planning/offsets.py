"""Position of a streaming query, in the format of Spark's checkpoint.

    {"topics": {"flights": {"id": "0190…", "offsets": {"0": [123, 5]}}}, "v": 1}

Each topic is stored with its id. Each partition is stored with the next offset to read and the epoch of the leader that
reported this offset, or -1 if the epoch is unknown. The ids and epochs show whether a topic was recreated or a log was
truncated. Spark compares offsets as text, so equal offsets must have equal text: names and partitions are sorted.

The start of a query is looked up whenever Spark asks for the initial offset: twice for the first trigger, and again
after a crash in the first trigger. Spark does not store the initial offset. The initial offset therefore has the member
`"initial": true`, and the end of the first trigger contains the topics of its start in the member `"from"`, so that
every run of the first trigger reads from the same start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, cast

VERSION: Final = 1
NO_EPOCH: Final = -1
"""Epoch that stands for an unknown leader epoch."""

JsonDict = dict[str, object]


class OffsetsFormatError(ValueError):
    """A string is not in the offset format of this source; the message states the fault and the expected format."""


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """The next offset to read, and the epoch of a leader that had all records before this offset."""

    offset: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """All partitions of one topic; `topic_id` is empty if unknown."""

    topic_id: str
    partitions: Mapping[int, PartitionOffset]


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Position of a query: its topics by name, each with its partitions."""

    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    initial: bool = False
    """Whether this is the initial offset of a query, which is looked up and not stored."""
    began: Mapping[str, TopicOffsets] | None = None
    """Start of the first trigger of a query; the field is set only in the end of the first trigger."""

    @classmethod
    def from_json(cls, document: str | Mapping[str, object]) -> StreamOffsets:
        """Return the offsets from the output of `to_dict`, as text or parsed JSON. Raises `OffsetsFormatError`."""
        if isinstance(document, str):
            try:
                document = json.loads(document)
            except ValueError as error:
                _wrong(f"no JSON ({error})")
        if not isinstance(document, Mapping):
            _wrong(f"{type(document).__name__} in place of an object")
        version = document.get("v")
        if version != VERSION:
            message = (
                f"offsets of version {version!r} cannot be read by this release, which reads version {VERSION}: "
                "the checkpoint was written by another release, or by another source"
            )
            raise OffsetsFormatError(message)
        began = document.get("from")
        return cls(
            _topics(document.get("topics"), "topics"),
            initial=document.get("initial") is True,
            began=None if began is None else _topics(began, "from"),
        )

    def to_dict(self) -> JsonDict:
        """Return the offsets as the JSON object that Spark stores; equal offsets give equal text."""
        document: JsonDict = {"topics": _as_json(self.topics), "v": VERSION}
        if self.began is not None:
            document["from"] = _as_json(self.began)
        if self.initial:
            document["initial"] = True
        return dict(sorted(document.items()))

    def end_offsets(self) -> dict[str, dict[int, int]]:
        """Return the next offset of every partition by topic, as a consumer group commits them."""
        return {
            name: {index: place.offset for index, place in sorted(topic.partitions.items())}
            for name, topic in sorted(self.topics.items())
        }

    def get(self, topic: str, partition: int) -> PartitionOffset | None:
        """Return the offset of one partition; None if the partition is unknown."""
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def epochs(self, topic_id: str, topic: str) -> Mapping[int, int]:
        """Return the leader epochs of the partitions of a topic; empty if the topic has a different id."""
        found = self.topics.get(topic)
        if found is None or found.topic_id != topic_id:
            return {}
        return {index: place.epoch for index, place in found.partitions.items() if place.epoch != NO_EPOCH}


def first_end(begin: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the end of a trigger; the end of the first trigger contains its start, which Spark does not store.

    If there are no new records, the end equals the start as text, since Spark compares offsets as text.
    """
    if begin.initial:
        return StreamOffsets(end.topics, began=begin.topics)
    return begin if end.topics == begin.topics else end


def begin_of(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the position at which a trigger with this start and end begins."""
    if start.initial and end.began is not None:
        return StreamOffsets(end.began)
    return start


def _as_json(topics: Mapping[str, TopicOffsets]) -> JsonDict:
    return {
        name: {
            "id": topic.topic_id,
            "offsets": {
                str(index): [place.offset, place.epoch] for index, place in sorted(topic.partitions.items())
            },
        }
        for name, topic in sorted(topics.items())
    }


def _topics(value: object, where: str) -> dict[str, TopicOffsets]:
    return {name: _topic(name, entry) for name, entry in sorted(_object(value, where).items())}


def _topic(name: str, entry: object) -> TopicOffsets:
    fields = _object(entry, f"topics.{name}")
    topic_id = fields.get("id")
    if not isinstance(topic_id, str):
        _wrong(f"topics.{name}.id is {topic_id!r}")
    offsets = _object(fields.get("offsets"), f"topics.{name}.offsets")
    return TopicOffsets(topic_id, {_index(name, key): _place(name, key, offsets[key]) for key in offsets})


def _index(name: str, key: str) -> int:
    if not key.isdecimal():
        _wrong(f"topics.{name}.offsets has the partition {key!r}")
    return int(key)


def _place(name: str, key: str, value: object) -> PartitionOffset:
    if not isinstance(value, list) or [type(part) for part in value] != [int, int]:
        _wrong(f"topics.{name}.offsets.{key} is {value!r}")
    return PartitionOffset(*value)


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        _wrong(f"{where} is {value!r}")
    return cast("Mapping[str, object]", value)


def _wrong(what: str) -> NoReturn:
    message = (
        f"offsets cannot be read: {what}; expected "
        '{"topics": {NAME: {"id": TEXT, "offsets": {PARTITION: [OFFSET, EPOCH]}}}, "v": 1}'
    )
    raise OffsetsFormatError(message)
