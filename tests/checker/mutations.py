"""Makes a valid history wrong in one place, and names the resulting anomaly.

Each mutation returns a changed copy of the history, or None if the history has no place for the change.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from anomalies import Anomaly
from valid_histories import ASKER, LAST_READER, MEMBER, READER, Event

Mutation = Callable[[list[Event], random.Random], list[Event] | None]


def acknowledged(events: list[Event]) -> dict[tuple[str, int], str]:
    """Return the acknowledged values, by key and offset, except values of transactions not known to be committed."""
    done = {event["id"] for event in events if event["op"] == "txn" and event["type"] == "ok"}
    sends = {
        event["id"]: event
        for event in events
        if event["op"] == "send"
        and event["type"] == "invoke"
        and ("txn" not in event or event["txn"] in done)
    }
    answers = [
        event for event in events if event["op"] == "send" and event["type"] == "ok" and event["id"] in sends
    ]
    return {
        (sends[answer["id"]]["key"], offset): value
        for answer in answers
        for offset, value in enumerate(sends[answer["id"]]["values"], answer["offset"])
    }


def polls_of(events: list[Event], process: int, records_min: int = 1) -> list[int]:
    """Return the positions in the history at which a process got at least `records_min` records."""
    return [
        at
        for at, event in enumerate(events)
        if event["op"] == "poll" and event["process"] == process and len(event["records"]) >= records_min
    ]


def _drop_everywhere(events: list[Event], rng: random.Random, *, last: bool) -> list[Event] | None:
    ends = next(event["keys"] for event in events if event["op"] == "end")
    told = [place for place in acknowledged(events) if (place[1] == ends[place[0]] - 1) is last]
    if not told:
        return None
    key, offset = rng.choice(told)
    harmed = copy.deepcopy(events)
    for event in harmed:
        if event["op"] == "poll" and event["key"] == key:
            event["records"] = [record for record in event["records"] if record[0] != offset]
    return harmed


def lose_a_record(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Remove from all reads an acknowledged record that other records follow."""
    return _drop_everywhere(events, rng, last=False)


def lose_the_last_record(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Remove the last record of a partition, which was acknowledged, from all reads."""
    return _drop_everywhere(events, rng, last=True)


def lose_it_after_it_was_read(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Remove an acknowledged record, which other readers got earlier, from the reads at the end."""
    told = acknowledged(events)
    harmed = copy.deepcopy(events)
    for at in rng.sample(ats := polls_of(harmed, LAST_READER, 2), len(ats)):
        records = harmed[at]["records"]
        for record in records[:-1]:
            if (harmed[at]["key"], record[0]) in told:
                records.remove(record)
                return harmed
    return None


def swap_two_in_one_answer(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Swap two values in the answer of one reader; another event shows the right place of one value."""
    known = {event["id"] for event in events if event["op"] == "send" and "offset" in event}
    places = [
        (at, place)
        for at in polls_of(events, LAST_READER, 2)
        for place, pair in enumerate(pairwise(events[at]["records"]))
        if any(int(value.partition(".")[0]) in known for _, value in pair)
    ]
    if not places:
        return None
    harmed = copy.deepcopy(events)
    at, place = rng.choice(places)
    records = harmed[at]["records"]
    records[place][1], records[place + 1][1] = records[place + 1][1], records[place][1]
    return harmed


def give_records_backwards(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Reverse the order of one answer's records; each record keeps its offset, so the offsets descend."""
    ats = polls_of(events, READER, 2)
    if not ats:
        return None
    harmed = copy.deepcopy(events)
    harmed[rng.choice(ats)]["records"].reverse()
    return harmed


def store_twice(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Store a value a second time after the end."""
    ats = polls_of(events, LAST_READER)
    if not ats:
        return None
    harmed = copy.deepcopy(events)
    poll = harmed[rng.choice(ats)]
    value = rng.choice(poll["records"])[1]
    end = next(event for event in harmed if event["op"] == "end")["keys"]
    last = next(at for at in reversed(polls_of(harmed, LAST_READER)) if harmed[at]["key"] == poll["key"])
    harmed[last]["records"].append([end[poll["key"]], value])
    end[poll["key"]] += 1
    return harmed


def change_a_value(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Change the bytes of a record."""
    ats = polls_of(events, LAST_READER)
    if not ats:
        return None
    harmed = copy.deepcopy(events)
    rng.choice(harmed[rng.choice(ats)]["records"])[1] += "x"
    return harmed


def refuse_what_is_stored(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Answer a request with a definite refusal even though its values are stored."""
    keys = {event["id"]: event["key"] for event in events if event["op"] == "send" and "key" in event}
    told = acknowledged(events)
    answers = [
        at
        for at, event in enumerate(events)
        if event["op"] == "send" and event["type"] == "ok" and (keys[event["id"]], event["offset"]) in told
    ]
    if not answers:
        return None
    harmed = copy.deepcopy(events)
    answer = harmed[rng.choice(answers)]
    answer["type"] = "fail"
    del answer["offset"]
    return harmed


def skip_an_answer(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Move a reader forward, so that it skips records."""
    ats = polls_of(events, READER)
    later = {event["key"] for at in ats[1:] for event in (events[at],)}
    ats = [at for at in ats if events[at]["key"] in later and any(_follows(events, at, b) for b in ats)]
    return events[: (at := rng.choice(ats))] + events[at + 1 :] if ats else None


def repeat_an_answer(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Repeat the records of a reader's last answer."""
    ats = polls_of(events, READER)
    return [*events[: (at := rng.choice(ats))], events[at], *events[at:]] if ats else None


def _follows(events: list[Event], first: int, second: int) -> bool:
    return second > first and events[first]["key"] == events[second]["key"]


def answer_a_smaller_end(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Answer a request for the end of a partition with a smaller offset than an earlier answer."""
    ats = [
        at
        for at, event in enumerate(events)
        if event["op"] == "offsets" and event["type"] == "ok" and event["high_watermark"] > 0
    ]
    if not ats:
        return None
    at = rng.choice(ats)
    asked = {**events[at], "process": ASKER + 1, "id": -1}
    del asked["high_watermark"]
    smaller = {**asked, "type": "ok", "high_watermark": events[at]["high_watermark"] - 1}
    return [*events[: at + 1], {**asked, "type": "invoke"}, smaller, *events[at + 1 :]]


def acknowledge_below(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Place a record without an answer below a record that was acknowledged before the send."""
    told = acknowledged(events)
    begun: dict[int, int] = {}
    sends = [(at, event) for at, event in enumerate(events) if event["op"] == "send"]
    begun = {event["id"]: at for at, event in sends if event["type"] == "invoke"}
    answers = [(at, event) for at, event in sends if event["type"] == "ok"]
    pairs = [
        (first, second)
        for (_, first), (at, second) in pairwise(answers)
        if begun[first["id"]] < begun[second["id"]] and second["offset"] > 0
    ]
    for _, second in rng.sample(pairs, len(pairs)):
        key = events[begun[second["id"]]]["key"]
        if (key, second["offset"]) in told:
            # In the changed history, the request begins only after every record with a higher offset was acknowledged.
            moved = [event for event in events if event.get("id") != second["id"] or event["op"] != "send"]
            end = next(at for at, event in enumerate(moved) if event["op"] == "heal")
            later = [event for event in events if event["op"] == "send" and event["id"] == second["id"]]
            behind = any(place[0] == key and place[1] >= second["offset"] + 4 for place in told)
            if behind:
                return [*moved[:end], *later, *moved[end:]]
    return None


def read_another_commit(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Answer a request for the committed offset with an offset that no member committed."""
    ats = [at for at, event in enumerate(events) if event["op"] == "committed" and event["type"] == "ok"]
    if not ats:
        return None
    harmed = copy.deepcopy(events)
    harmed[rng.choice(ats)]["offset"] += 1
    return harmed


def commit_unread(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Commit records before the group receives them."""
    commits = [at for at, event in enumerate(events) if event["op"] == "commit" and event["type"] == "ok"]
    for at in rng.sample(commits, len(commits)):
        given = events[at - 2]
        if given["records"]:
            return [*events[: at - 2], *events[at - 1 : at + 1], given, *events[at + 1 :]]
    return None


def _committed(events: list[Event]) -> dict[int, list[Event]]:
    """Return the sends of each transaction that was reported as committed."""
    done = {event["id"] for event in events if event["op"] == "txn" and event["type"] == "ok"}
    found: dict[int, list[Event]] = {}
    for event in events:
        if event["op"] == "send" and event["type"] == "invoke" and event.get("txn") in done:
            found.setdefault(event["txn"], []).append(event)
    return found


def tear_a_transaction(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Remove the records of a committed transaction in one partition from all reads."""
    whole = [sends for sends in _committed(events).values() if len({send["key"] for send in sends}) > 1]
    if not whole:
        return None
    sends = rng.choice(whole)
    key = rng.choice(sends)["key"]
    lost = {value for send in sends if send["key"] == key for value in send["values"]}
    harmed = copy.deepcopy(events)
    for event in harmed:
        if event["op"] == "poll" and event["key"] == key:
            event["records"] = [record for record in event["records"] if record[1] not in lost]
    return harmed


def read_inside_a_transaction(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Answer a reader with a last stable offset between two records of a transaction."""
    writers = {
        (send["key"], value): txn
        for txn, sends in _committed(events).items()
        for send in sends
        for value in send["values"]
    }
    places = [
        (at, after[0])
        for at in polls_of(events, READER, records_min=2)
        for before, after in pairwise(events[at]["records"])
        if writers.get((events[at]["key"], before[1]), -1) == writers.get((events[at]["key"], after[1]), -2)
    ]
    if not places:
        return None
    harmed = copy.deepcopy(events)
    at, stable = rng.choice(places)
    harmed[at]["last_stable_offset"] = stable
    return harmed


def read_in_a_circle(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Let two committed transactions read each other's records."""
    committed = _committed(events)
    if len(committed) < 2:
        return None
    first, second = rng.sample(sorted(committed), 2)
    offsets = {(key, value): offset for (key, offset), value in acknowledged(events).items()}
    polls = []
    for process, reader, writer in ((500, first, second), (501, second, first)):
        send = committed[writer][0]
        key, value = send["key"], send["values"][0]
        poll = {"op": "poll", "type": "ok", "process": process, "key": key, "txn": reader}
        polls.append({**poll, "records": [[offsets[key, value], value]]})
    return [*events[:-1], *polls, events[-1]]


def _offsets_of(events: list[Event], txns: set[int]) -> list[tuple[Event, int]]:
    """Return the sends of some transactions, with their acknowledged offsets."""
    offsets = {
        event["id"]: event["offset"]
        for event in events
        if event["op"] == "send" and event["type"] == "ok" and "offset" in event
    }
    return [
        (event, offsets[event["id"]])
        for event in events
        if event["op"] == "send"
        and event["type"] == "invoke"
        and event.get("txn") in txns
        and event["id"] in offsets
    ]


def show_an_aborted_transaction(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Show a reader the records that an aborted transaction has stored."""
    aborted = {event["id"] for event in events if event["op"] == "txn" and event["type"] == "fail"}
    sends = _offsets_of(events, aborted)
    if not sends:
        return None
    send, offset = rng.choice(sends)
    records = [[at, value] for at, value in enumerate(send["values"], offset)]
    poll = {"op": "poll", "type": "ok", "process": 503, "key": send["key"], "records": records}
    return [*events[:-1], poll, events[-1]]


def read_own_before_commit(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Let a transaction read a record that it has stored, before its commit."""
    sends = _offsets_of(events, set(_committed(events)))
    if not sends:
        return None
    send, offset = rng.choice(sends)
    txn = send["txn"]
    at = next(at for at, event in enumerate(events) if event["op"] == "txn" and event["id"] == txn)
    poll = {"op": "poll", "type": "ok", "process": 502, "key": send["key"], "txn": txn}
    return [*events[:at], {**poll, "records": [[offset, send["values"][0]]]}, *events[at:]]


def consume_twice(events: list[Event], rng: random.Random) -> list[Event] | None:
    """Deliver the records of one answer to a second member of the group, which commits with its output."""
    ats = polls_of(events, MEMBER)
    if not ats:
        return None
    at = rng.choice(ats)
    return [*events[: at + 1], {**events[at], "process": MEMBER + 1}, *events[at + 1 :]]


MUTATIONS: Final[dict[Mutation, frozenset[Anomaly]]] = {
    lose_a_record: frozenset({Anomaly.LOST_WRITE, Anomaly.TORN_TRANSACTION}),
    # The marker of a transaction may follow the last record, and readers that passed the marker have lost the record.
    lose_the_last_record: frozenset({Anomaly.UNSEEN, Anomaly.LOST_WRITE, Anomaly.TORN_TRANSACTION}),
    lose_it_after_it_was_read: frozenset({Anomaly.LOST_WRITE, Anomaly.TORN_TRANSACTION}),
    swap_two_in_one_answer: frozenset(
        {Anomaly.INCONSISTENT_OFFSETS, Anomaly.DUPLICATE, Anomaly.NONMONOTONIC_SEND}
    ),
    give_records_backwards: frozenset({Anomaly.INTERNAL_POLL}),
    store_twice: frozenset({Anomaly.DUPLICATE}),
    change_a_value: frozenset({Anomaly.PHANTOM}),
    refuse_what_is_stored: frozenset({Anomaly.ABORTED_READ}),
    skip_an_answer: frozenset({Anomaly.POLL_SKIP}),
    repeat_an_answer: frozenset({Anomaly.NONMONOTONIC_POLL}),
    answer_a_smaller_end: frozenset({Anomaly.BACKWARD}),
    acknowledge_below: frozenset({Anomaly.OFFSET_ORDER}),
    read_another_commit: frozenset({Anomaly.COMMITTED_REGISTER}),
    commit_unread: frozenset({Anomaly.ACCOUNTING}),
    tear_a_transaction: frozenset({Anomaly.TORN_TRANSACTION}),
    read_inside_a_transaction: frozenset({Anomaly.INTERMEDIATE_READ}),
    read_in_a_circle: frozenset({Anomaly.CIRCULAR_FLOW}),
    show_an_aborted_transaction: frozenset({Anomaly.ABORTED_READ}),
    read_own_before_commit: frozenset({Anomaly.PRECOMMITTED_READ}),
    consume_twice: frozenset({Anomaly.CONSUMED_TWICE}),
}
"""The mutations, each with the anomalies that must be found; further anomalies may follow."""
