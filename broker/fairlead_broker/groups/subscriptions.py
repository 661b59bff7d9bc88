"""Existing topics that the members of a group consume, selected by name or by an RE2 pattern for the whole name.

A pattern matches internal topics, whose names begin with `__`, only if the pattern itself begins with `__`, as ACLs do
(rule Z6). Matching a pattern takes time linear in the length of the name, and bounded memory. Each topic is matched
only once against each pattern, even if other topics change.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

import re2

from fairlead_api.excerpts import shortened, shown
from fairlead_api.identifiers import TopicId
from fairlead_api.patterns import HIDDEN, literal_prefix
from fairlead_api.problems import ProblemError

PATTERNS_MAX: Final = 16
"""Maximum number of different patterns in a group: each new topic is matched against all patterns."""
PATTERN_LENGTH_MAX: Final = 1_000
"""Maximum number of characters in a pattern."""
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 18
"""Maximum memory in bytes that RE2 uses for one compiled pattern. Within this memory, RE2 matches any pattern in
linear time.
"""
PATTERN_INSTRUCTIONS_MAX: Final = 1_100
"""Maximum number of instructions in a compiled pattern, enough for the longest pattern that lists topic names. In the
worst case RE2 runs each instruction for each character of a name, which blocks the event loop for a millisecond for the
longest name.
"""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic that a group may consume."""

    topic_id: TopicId
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    """Racks of the replicas of each partition, empty if racks are not known."""


Topics: TypeAlias = Mapping[str, TopicShape]
"""Every ready topic by name. Callers pass the same object for unchanged topics, because a turn compares object
identities.
"""


_REMEMBERED_MAX: Final = 2_000
"""Number of resolved subscriptions that are kept, twice the maximum number of members."""


def check_pattern(pattern: str) -> str:
    """Return the pattern if RE2 accepts it within the limits; otherwise raise `invalid_pattern`.

    Only patterns in new requests are checked. A stored pattern was within the limits when it was written, and stays
    valid.
    """
    instructions = _compiled(pattern).programsize
    if instructions > PATTERN_INSTRUCTIONS_MAX:
        _refuse(
            pattern,
            f"it costs too much: {instructions} steps; at most {PATTERN_INSTRUCTIONS_MAX} are allowed",
        )
    return pattern


class SubscribedTopics:
    """Topics of subscriptions, which are resolved again when the topics change."""

    __slots__ = ("_matched", "_resolved", "topics")

    def __init__(self) -> None:
        self.topics: Topics = {}
        """Topics at the last turn."""
        self._matched: dict[str, set[str]] = {}
        self._resolved: dict[tuple[tuple[str, ...], str | None], frozenset[str]] = {}

    def learn(self, topics: Topics) -> bool:
        """Replace the topics, and return whether they differ from the previous topics."""
        if topics is self.topics:
            return False
        came, gone = topics.keys() - self.topics.keys(), self.topics.keys() - topics.keys()
        for pattern, names in self._matched.items():
            names.difference_update(gone)
            names.update(_matches(pattern, came))
        self.topics = topics
        self._resolved.clear()
        return True

    def resolve(self, names: tuple[str, ...], pattern: str | None) -> frozenset[str]:
        """Return the existing topics of a subscription."""
        known = self._resolved.get((names, pattern))
        if known is not None:
            return known
        found = self.topics.keys() & names
        if pattern is not None:
            found |= self._matched_by(pattern)
        if len(self._resolved) >= _REMEMBERED_MAX:
            self._resolved.clear()
        resolved = self._resolved[names, pattern] = frozenset(found)
        return resolved

    def _matched_by(self, pattern: str) -> set[str]:
        matched = self._matched.get(pattern)
        if matched is None:
            # The cache is cleared when it contains twice as many patterns as a group may have; this removes the
            # patterns of members that have left.
            if len(self._matched) >= 2 * PATTERNS_MAX:
                self._matched.clear()
            matched = self._matched[pattern] = _matches(pattern, self.topics.keys())
        return matched


def _matches(pattern: str, names: AbstractSet[str]) -> set[str]:
    compiled = _compiled(pattern)
    if not literal_prefix(pattern).startswith(HIDDEN):
        names = {name for name in names if not name.startswith(HIDDEN)}
    return {name for name in names if compiled.fullmatch(name) is not None}


def _compiled(pattern: str) -> re2._Regexp:
    """Compile a pattern. The Python binding of RE2 caches recently compiled patterns."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        _refuse(pattern, f"it has {len(pattern)} characters; at most {PATTERN_LENGTH_MAX} are allowed")
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.log_errors = False
    # Only the existence of a match is needed. For a pattern with a few hundred capturing groups, finding the positions
    # of the groups would take a thousand times as long.
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        _refuse(pattern, error.args[0].decode("utf-8", "replace"))
    except UnicodeEncodeError:
        _refuse(pattern, "it is not valid Unicode")


def _refuse(pattern: str, reason: str) -> NoReturn:
    detail = f"pattern {shown(pattern)} is not allowed: {reason}"
    raise ProblemError("invalid_pattern", detail, data={"value": shortened(pattern)})
