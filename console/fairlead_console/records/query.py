"""The search on a page of messages: checked parameters of its address, and addresses of other searches. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args
from urllib.parse import quote, urlencode

from fairlead.cli.records.positions import PositionError, moment
from fairlead_console.records.filters import Field, FilterError, Match, RecordFilter
from fairlead_console.records.scan import MIB, Positions, ScanRange, Start
from fairlead_console.records.views import View

COUNTS: Final = (20, 50, 100, 500)
RATES: Final = (5, 20, 50)
"""Maximum number of records per second that a live tail shows."""
BUDGETS_MIB: Final = (16, 64, 256, 1024, 4096, 16384, 65536)
OFFSET_MAX: Final = 2**63 - 1
_POSITIONS: Final = re.compile(r"[0-9]{1,9}-[0-9]{1,19}(?:\.[0-9]{1,9}-[0-9]{1,19})*")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
DEFAULTS: Final[Mapping[str, str]] = {
    "start": "newest",
    "at": "",
    "partition": "",
    "key": "",
    "q": "",
    "field": "any",
    "match": "contains",
    "view": "auto",
    "count": "50",
    "budget": "64",
    "committed": "",
    "rate": "20",
    "positions": "",
    "nbytes": "0",
    "seen": "0",
    "found": "0",
    "patience": "1",
}
"""Parameters and their defaults. The last five parameters continue a search: `positions` is where the search stopped,
`nbytes`, `seen` and `found` are sums over its parts, and `patience` is the time for one part in seconds."""
CONTINUING: Final = ("positions", "nbytes", "seen", "found", "patience")


class QueryError(ValueError):
    """A parameter is not valid; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """A search for records of a topic."""

    topic: str
    given: dict[str, str] = field(default_factory=dict)
    """Parameters of the address that differ from their defaults."""

    def __getitem__(self, name: str) -> str:
        return self.given.get(name, DEFAULTS[name])

    def address(self, page: str = "messages", /, **changed: object) -> str:
        """Return the address of this search with other parameters."""
        values = self.given | {name: str(value) for name, value in changed.items()}
        query = urlencode({name: value for name, value in values.items() if value != DEFAULTS.get(name)})
        return f"/topics/{quote(self.topic, safe='')}/{page}" + (f"?{query}" if query else "")

    def fresh(self, page: str = "messages", /, **changed: object) -> str:
        """Return the address of this search from its beginning."""
        return self.address(page, **({name: DEFAULTS[name] for name in CONTINUING} | changed))

    @property
    def is_continued(self) -> bool:
        """Whether this search continues an earlier part of the same search."""
        return bool(self["positions"])

    @property
    def record_filter(self) -> RecordFilter:
        """Condition of the search. Raises `QueryError`."""
        wanted = RecordFilter(
            key=self["key"].encode(errors="surrogateescape") if self["key"] else None,
            field=_one_of("field", self["field"], get_args(Field)),
            kind=_one_of("match", self["match"], get_args(Match)),
            text=self["q"],
        )
        try:
            wanted.compiled()
        except FilterError as error:
            raise QueryError(str(error)) from error
        return wanted

    @property
    def scan_range(self) -> ScanRange:
        """Range of records that the search reads. Raises `QueryError`."""
        start: Start = _one_of("start", self["start"], get_args(Start))
        offset, time = 0, None
        if start == "offset":
            offset = _number("offset", self["at"] or "0", OFFSET_MAX)
        elif start == "time":
            try:
                time = moment(self["at"].strip())
            except PositionError as error:
                raise QueryError(str(error)) from error
        return ScanRange(
            topic=self.topic,
            partition=_number("partition", self["partition"], 10**9) if self["partition"] else None,
            start=start,
            offset=offset,
            time=time,
            positions=_positions(self["positions"]),
            is_committed=bool(self["committed"]),
        )

    @property
    def view(self) -> View:
        """Form in which contents are shown. Raises `QueryError`."""
        view: View = _one_of("view", self["view"], get_args(View))
        return view

    @property
    def count(self) -> int:
        """Number of records that a page shows. Raises `QueryError`."""
        return max(1, _number("count", self["count"], COUNTS[-1]))

    @property
    def rate(self) -> int:
        """Maximum number of records that a live tail shows in a second. Raises `QueryError`."""
        return max(1, _number("rate", self["rate"], RATES[-1]))

    @property
    def budget_mib(self) -> int:
        """Budget of the whole search in MiB. Raises `QueryError`."""
        return max(1, _number("budget", self["budget"], BUDGETS_MIB[-1]))

    @property
    def nbytes(self) -> int:
        """Number of bytes that earlier parts of the search have read. Raises `QueryError`."""
        return _number("nbytes", self["nbytes"], OFFSET_MAX)

    @property
    def nbytes_left(self) -> int:
        """Number of bytes that the search may still read. Raises `QueryError`."""
        return max(1, self.budget_mib * MIB - self.nbytes)

    @property
    def next_budget_mib(self) -> int | None:
        """Next larger budget; None if this is the largest."""
        return next((each for each in BUDGETS_MIB if each > self.budget_mib), None)


def check_partition(scan_range: ScanRange, partitions: int) -> None:
    """Raise `QueryError` unless a topic with this number of partitions has the partition of the search."""
    if scan_range.partition is not None and scan_range.partition >= partitions:
        topic, last = scan_range.topic, partitions - 1
        msg = f"partition: {topic} has the partitions 0 to {last}; found {scan_range.partition}"
        raise QueryError(msg)


def message_query(topic: str, parameters: Mapping[str, str]) -> MessageQuery:
    """Return the search that an address describes; unknown parameters are ignored."""
    return MessageQuery(
        topic,
        {
            name: parameters[name]
            for name in DEFAULTS
            if parameters.get(name, DEFAULTS[name]) != DEFAULTS[name]
        },
    )


def positions_text(positions: Positions) -> str:
    """Return positions as the text of a parameter, for example `0-17.1-25`."""
    return ".".join(f"{partition}-{offset}" for partition, offset in sorted(positions.items()))


def _positions(text: str) -> Positions:
    if not text:
        return {}
    if not _POSITIONS.fullmatch(text):
        msg = "positions: the address is not complete; start the search again"
        raise QueryError(msg)
    pairs = (each.split("-") for each in text.split("."))
    return {int(partition): int(offset) for partition, offset in pairs}


def _number(name: str, text: str, most: int) -> int:
    if not _NUMBER.fullmatch(text.strip()) or int(text) > most:
        msg = f"{name}: a number from 0 to {most:,}; found {text!r}"
        raise QueryError(msg)
    return int(text)


def _one_of(name: str, text: str, allowed: tuple[Any, ...]) -> Any:
    if text not in allowed:
        msg = f"{name}: one of {', '.join(allowed)}; found {text!r}"
        raise QueryError(msg)
    return text
