"""Fetch sessions (KIP-227): the broker remembers a reader's partitions, so that the reader sends only changes.

`calls.fetch` begins each fetch here, and leaves unchanged partitions out of the answers of a session. The memory of all
sessions is bounded: a reader beyond a limit gets no session, and sends every partition in every request. This module
must not know what a fetch returns, and has no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from fairlead_broker.kafka.protocol.errors import KafkaError

SESSIONS_MAX: Final = 1_000
"""Maximum number of sessions, as in Kafka."""
PARTITIONS_MAX: Final = 200_000
"""Maximum number of partitions in all sessions; each takes about 300 bytes."""
IDLE_SECONDS: Final = 120.0
"""Time without a fetch after which a session may be dropped for another one, as in Kafka."""
FINAL_EPOCH: Final = -1
"""Session epoch of a fetch that ends its session."""
INITIAL_EPOCH: Final = 0
"""Session epoch of a fetch that asks for a new session."""
EPOCH_MAX: Final = 2**31 - 1


class FetchTopic(NamedTuple):
    """Topic of a fetch, named by id or name, as in the request's version."""

    name: str
    topic_id: UUID | None


class Wanted(NamedTuple):
    """Partition of a fetch, with the position of the reader."""

    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int
    bytes_max: int


class Offsets(NamedTuple):
    """Offsets of a partition that a reader has last seen."""

    high_watermark: int
    log_start: int
    last_stable: int


UNSEEN: Final = Offsets(-1, -1, -1)
Place = tuple[FetchTopic, int]


class SessionRefused(Exception):
    """Raised for a fetch whose session is unknown or in another epoch; `error` is the answer to the fetch."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(slots=True)
class _Session:
    """Session of one reader."""

    id: int
    owner: str
    """Principal that began the session."""
    used_at: float
    epoch: int = INITIAL_EPOCH + 1
    """Epoch of the next fetch."""
    partitions: dict[Place, Wanted] = field(default_factory=dict)
    """Partitions in the order in which they are read."""
    seen: dict[Place, Offsets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One fetch: its partitions, and the session to which it belongs."""

    topics: list[tuple[FetchTopic, list[Wanted]]]
    session_id: int
    """Id of the session in the answer; 0 without a session."""
    _session: _Session | None = None
    _is_incremental: bool = False

    def includes(self, place: Place, offsets: Offsets, *, has_news: bool) -> bool:
        """Return whether the answer has an entry for a partition, and remember the offsets that the entry states.

        `has_news`: the entry has records or an error.
        """
        session = self._session
        if session is None or place not in session.partitions:
            return True
        if has_news:
            # A partition with records is read last by the next fetch, so that other partitions get their turn.
            session.partitions[place] = session.partitions.pop(place)
        changed = session.seen.get(place) != offsets
        session.seen[place] = offsets
        return has_news or changed or not self._is_incremental


class FetchSessions:
    """Sessions of all readers of one broker."""

    def __init__(
        self,
        new_id: Callable[[], int],
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        """`new_id` returns a random number from 1 to 2**31 - 1."""
        self._new_id = new_id
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[int, _Session] = {}
        """Sessions in the order of their last use."""
        self._partitions = 0

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        topics: Iterable[tuple[FetchTopic, list[Wanted]]],
        forgotten: Iterable[Place],
        *,
        owner: str,
        now: float,
    ) -> Fetch:
        """Return a fetch with all its partitions.

        `owner`: principal of the reader; `now`: monotonic time in seconds. Raises SessionRefused.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            named = list(topics)
            self._drop(self._sessions.get(session_id), owner)
            session = None if epoch == FINAL_EPOCH else self._created(named, owner, now)
            return Fetch(named, 0 if session is None else session.id, session)
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise SessionRefused(KafkaError.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session_id] = session
        if session.owner != owner:
            raise SessionRefused(KafkaError.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise SessionRefused(KafkaError.INVALID_FETCH_SESSION_EPOCH)
        session.used_at = now
        session.epoch = epoch + 1 if epoch < EPOCH_MAX else INITIAL_EPOCH + 1
        self._update(session, topics, forgotten)
        return Fetch(_by_topic(session), session.id, session, _is_incremental=True)

    def _created(
        self, topics: list[tuple[FetchTopic, list[Wanted]]], owner: str, now: float
    ) -> _Session | None:
        """Return a new session, or None if the limits leave no room for another session."""
        count = sum(len(each) for _, each in topics)
        while self._sessions and not self._has_room(count):
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < IDLE_SECONDS:
                return None
            self._remove(oldest)
        if not count or not self._has_room(count):
            return None
        number = self._new_id()
        while number in self._sessions:
            number = self._new_id()
        session = self._sessions[number] = _Session(number, owner, now)
        self._update(session, topics, ())
        return session

    def _has_room(self, partitions: int) -> bool:
        return (
            len(self._sessions) < self._sessions_max and self._partitions + partitions <= self._partitions_max
        )

    def _update(
        self,
        session: _Session,
        topics: Iterable[tuple[FetchTopic, list[Wanted]]],
        forgotten: Iterable[Place],
    ) -> None:
        before = len(session.partitions)
        for topic, wanted in topics:
            for each in wanted:
                session.partitions[topic, each.partition] = each
        for place in forgotten:
            session.partitions.pop(place, None)
            session.seen.pop(place, None)
        self._partitions += len(session.partitions) - before
        if self._partitions > self._partitions_max:
            # The reader starts a full fetch and gets no session.
            self._remove(session)
            raise SessionRefused(KafkaError.FETCH_SESSION_ID_NOT_FOUND)

    def _drop(self, session: _Session | None, owner: str) -> None:
        if session is not None and session.owner == owner:
            self._remove(session)

    def _remove(self, session: _Session) -> None:
        del self._sessions[session.id]
        self._partitions -= len(session.partitions)


def _by_topic(session: _Session) -> list[tuple[FetchTopic, list[Wanted]]]:
    found: dict[FetchTopic, list[Wanted]] = {}
    for (topic, _), wanted in session.partitions.items():
        found.setdefault(topic, []).append(wanted)
    return list(found.items())
