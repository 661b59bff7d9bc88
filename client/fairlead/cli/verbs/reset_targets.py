"""Where `group reset --to` goes, and what `--topic` names: text to the contract's own types. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from fairlead_api.bodies.group_requests import ResetPartition, ResetTarget
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

Target: TypeAlias = Literal["earliest", "latest"] | ResetTarget

ALLOWED: Final = (
    "earliest, latest, @TIME (RFC 3339 or milliseconds), a duration ago (30s, 10m, 2h, 7d), a shift (+100, -100) "
    "or an offset"
)
_DURATION: Final = re.compile(r"[0-9]{1,12}(ms|s|m|h|d)")
_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_PARTITION: Final = re.compile(r"[0-9]{1,9}")


class ResetTargetError(ValueError):
    """A position or a topic that cannot be understood; the message names it and what is allowed."""


def reset_target(text: str) -> Target:
    """Return the position that `text` names.

    Raises:
        ResetTargetError: it names none.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith("@"):
        return ResetTarget(timestamp=_timestamp(text[1:], text))
    if _DURATION.fullmatch(text):
        return ResetTarget(duration=text)
    if _SHIFT.fullmatch(text):
        return ResetTarget(shift=int(text))
    if _OFFSET.fullmatch(text):
        return ResetTarget(offset=int(text))
    msg = f"--to {text!r} is no position; allowed: {ALLOWED}"
    raise ResetTargetError(msg)


def _timestamp(time: str, text: str) -> int | str:
    value = int(time) if _OFFSET.fullmatch(time) else time
    try:
        parse_timestamp_us(value, "to")
    except ProblemError as problem:
        msg = f"--to {text!r} names no time; a time is RFC 3339 (2013-01-01T00:00:00Z) or milliseconds"
        raise ResetTargetError(msg) from problem
    return value


def reset_topics(texts: Iterable[str]) -> list[str | ResetPartition] | None:
    """Return what `TOPIC` and `TOPIC:P,P` name, each once; None for nothing, which means all of the group.

    Raises:
        ResetTargetError: a name that no topic can have, or a partition that is no number.
    """
    chosen: dict[tuple[str, int | None], str | ResetPartition] = {}
    for text in texts:
        topic, colon, partitions = text.partition(":")
        try:
            check_topic_name(topic)
        except ProblemError as problem:
            msg = f"--topic {text!r}: {problem.detail}"
            raise ResetTargetError(msg) from problem
        if not colon:
            chosen[topic, None] = topic
            continue
        for number in partitions.split(","):
            if not _PARTITION.fullmatch(number):
                msg = f"--topic {text!r} names partition {number!r}; give numbers: {topic}:0,1"
                raise ResetTargetError(msg)
            chosen[topic, int(number)] = ResetPartition(topic=topic, partition=int(number))
    return list(chosen.values()) or None
