"""Judges committed offsets of groups: they act as a register, and members commit only records that were received.

`commit` and `committed` events of one (group, key) must be explained by one register that each request touched at one
moment between its invoke and its completion (A. Lowe, "Testing for linearizability": the set of all explanations is
carried from event to event). Commits without an answer may act at any later moment, or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anomalies import Anomaly, Findings

EXPLANATIONS_MAX: Final = 20_000
"""Number of explanations beyond which the search stops and the verdict is unknown."""

Explanation = tuple[int | None, frozenset[int]]
"""The committed offset, and the requests in flight that have already acted."""


@dataclass(slots=True)
class _Request:
    """A commit, or a request for the committed offset."""

    number: int
    writes: bool
    offset: int | None
    epoch: int
    reset: bool
    began: int
    newest_epoch: int
    """Highest member epoch that had committed when this request began."""


@dataclass(slots=True)
class _Place:
    """A group's view of one partition."""

    name: str
    explanations: set[Explanation] = field(default_factory=lambda: {(None, frozenset[int]())})
    under_way: dict[int, _Request] = field(default_factory=dict)
    newest_epoch: int = -1
    commits: list[_Request] = field(default_factory=list)
    delivered: dict[int, int] = field(default_factory=dict)
    """Number of the event that first delivered each offset."""
    broken: bool = False


class GroupOffsets:
    """Every group of a history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._places: dict[tuple[str, str], _Place] = {}
        self.undecided: list[str] = []

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        """Apply a `commit` or `committed` event, with its number in the history."""
        kind = event["type"]
        if kind == "invoke":
            place = self._place(event["group"], event["key"])
            place.under_way[event["id"]] = _Request(
                number=event["id"],
                writes=event["op"] == "commit",
                offset=event.get("offset"),
                epoch=event.get("epoch", -1),
                reset=event.get("reset", False),
                began=number,
                newest_epoch=place.newest_epoch,
            )
            return
        place = self._place(event["group"], event["key"])
        request = place.under_way[event["id"]]
        if kind == "fail":
            # The request certainly did nothing: explanations that include it are dropped.
            del place.under_way[event["id"]]
            left = {each for each in place.explanations if request.number not in each[1]}
            if not left and not place.broken:
                place.broken = True
                said = f"{place.name}: {request.offset} was returned by a request, and its commit refused"
                self._findings.note(Anomaly.COMMITTED_REGISTER, said)
            place.explanations = left
        elif kind == "ok":
            self._complete(place, request, event)

    def delivered(self, number: int, group: str, key: str, offsets: list[int]) -> None:
        """Record the offsets that a member received."""
        seen = self._place(group, key).delivered
        for offset in offsets:
            if offset in seen:
                self._findings.note(Anomaly.CONSUMED_TWICE, f"{group} of {key}: offset {offset}")
            else:
                seen[offset] = number

    def judge(self, known: Mapping[str, list[int]]) -> None:
        """Find committed records that no member received; `known` has the offsets with a record, sorted, by key."""
        for (_, key), place in self._places.items():
            self._account(place, known.get(key, []))

    def _place(self, group: str, key: str) -> _Place:
        place = self._places.get((group, key))
        if place is None:
            place = self._places[group, key] = _Place(f"{group} of {key}")
        return place

    def _complete(self, place: _Place, request: _Request, event: Mapping[str, Any]) -> None:
        if request.writes:
            if not request.reset and -1 < request.epoch < request.newest_epoch:
                said = f"{place.name}: epoch {request.epoch} committed {request.offset} after {request.newest_epoch}"
                self._findings.note(Anomaly.COMMITTED_REGISTER, said)
            place.newest_epoch = max(place.newest_epoch, request.epoch)
            place.commits.append(request)
        else:
            request.offset = event["offset"]
        if not place.broken:
            self._explain(place, request)
        del place.under_way[request.number]

    def _explain(self, place: _Place, request: _Request) -> None:
        """Replace the explanations of the partition with those in which the answered request has taken effect."""
        done: set[Explanation] = set()
        seen, open_ = set(place.explanations), list(place.explanations)
        while open_:
            value, acted = open_.pop()
            if request.number in acted:
                done.add((value, acted - {request.number}))
                continue
            for other in place.under_way.values():
                if other.number in acted:
                    continue
                if other.writes:
                    following = (other.offset, acted | {other.number})
                elif other is request and other.offset == value:
                    following = (value, acted | {other.number})
                else:
                    continue  # a pending read changes nothing
                if following not in seen:
                    seen.add(following)
                    open_.append(following)
            if len(seen) > EXPLANATIONS_MAX:
                place.broken = True
                self.undecided.append(
                    f"{place.name}: too many commits without an answer to explain all reads"
                )
                return
        if not done:
            place.broken = True
            values = sorted({str(value) for value, _ in place.explanations})
            said = f"{place.name}: {request.offset} was answered, and could only be {' or '.join(values)}"
            self._findings.note(Anomaly.COMMITTED_REGISTER, said)
        place.explanations = done

    def _account(self, place: _Place, known: list[int]) -> None:
        """Find records below a committed offset that no member received."""
        accounted = 0
        for commit in place.commits:
            upto = commit.offset or 0
            if not commit.reset:
                for offset in known[bisect_left(known, accounted) : bisect_left(known, upto)]:
                    if place.delivered.get(offset, commit.began) >= commit.began:
                        said = f"{place.name}: {upto} was committed before {offset} was delivered"
                        self._findings.note(Anomaly.ACCOUNTING, said)
            accounted = max(accounted, upto)
