"""Makes valid histories of any length: events that clients of a correct log may see.

The log consists of one list per partition. Requests overlap, and some get no answer, whether they are stored or not. A
reader follows each partition, another one reads in transactions, a group reads and commits, a process requests log
ends, and at the end all records are read once more.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

Event = dict[str, Any]
READER, MEMBER, ASKER, LAST_READER, TRANSACTIONAL_READER = 100, 200, 300, 400, 600
POLL_RECORDS_MAX = 20


class Workload:
    """Clients of a log that is always correct."""

    def __init__(self, rng: random.Random, partitions: int = 3) -> None:
        self.events: list[Event] = [
            {"op": "settings", "acks": "all", "idempotence": True, "delivery": "exactly_once"}
        ]
        self._rng = rng
        self._keys = [f"t-{number}" for number in range(partitions)]
        self._logs: dict[str, list[str | None]] = {key: [] for key in self._keys}
        """Values by offset; None for markers and for records of aborted transactions."""
        self._positions: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._numbers = 0
        self._reading: int | None = None
        """Transaction that reads, and continues in further steps."""
        self._time = 0.0
        for process in (READER, MEMBER, TRANSACTIONAL_READER):
            self._note(
                {"op": "assign", "type": "ok", "process": process, "keys": dict.fromkeys(self._keys, 0)}
            )

    def run(self, steps: int) -> list[Event]:
        """Run `steps` steps and the end phase; return the history."""
        step = (
            self._send, self._send, self._send, self._transact, self._read, self._read_in_a_group, self._ask,
            self._read_in_a_transaction,
        )  # fmt: skip
        for _ in range(steps):
            self._rng.choice(step)(self._rng.choice(self._keys))
        self._note({"op": "heal"})
        self._note(
            {"op": "assign", "type": "ok", "process": LAST_READER, "keys": dict.fromkeys(self._keys, 0)}
        )
        for key in self._keys:
            while self._positions[LAST_READER, key] < len(self._logs[key]):
                self._poll(LAST_READER, key, final=True)
        ends = {
            key: max((offset + 1 for offset, value in enumerate(log) if value is not None), default=0)
            for key, log in self._logs.items()
        }
        self._note({"op": "end", "keys": ends})
        return self.events

    def _note(self, event: Event) -> None:
        self._time += 0.001
        timed = event["op"] != "settings" and event["op"] != "end"
        self.events.append({**event, "time": round(self._time, 3)} if timed else event)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _send(self, key: str) -> None:
        """Send one request, or two concurrent requests of two processes."""
        requests: list[Event] = []
        for process in self._rng.sample(range(4), self._rng.choice((1, 1, 2))):
            number = self._number()
            values = [f"{number}.{index}" for index in range(self._rng.randint(1, 4))]
            invoke: Event = {"op": "send", "process": process, "id": number, "key": key, "values": values}
            self._note({**invoke, "type": "invoke"})
            requests.append(invoke)
        self._rng.shuffle(requests)
        answers = []
        for request in requests:
            answer = {"op": "send", "process": request["process"], "id": request["id"]}
            outcome = self._rng.choice(("ok", "ok", "ok", "ok", "info", "info-stored", "fail"))
            offset = len(self._logs[key])
            if outcome in {"ok", "info-stored"}:
                self._logs[key] += request["values"]
            more = {"offset": offset} if outcome == "ok" else {}
            answers.append({**answer, "type": outcome.split("-")[0], **more})
        self._rng.shuffle(answers)
        for answer in answers:
            self._note(answer)

    def _transact(self, key: str) -> None:
        """Send to some keys in a transaction, and commit or abort the transaction."""
        txn, process = self._number(), self._rng.randrange(4)
        is_committed = self._rng.random() < 0.7
        keys = {key, *self._rng.sample(self._keys, self._rng.randint(0, 2))}
        for each in sorted(keys):
            for _ in range(self._rng.randint(1, 2)):
                number, log = self._number(), self._logs[each]
                values = [f"{number}.{index}" for index in range(self._rng.randint(1, 3))]
                send: Event = {"op": "send", "process": process, "id": number}
                self._note({**send, "type": "invoke", "key": each, "values": values, "txn": txn})
                self._note({**send, "type": "ok", "offset": len(log)})
                log += values if is_committed else [None] * len(values)
        for each in keys:
            self._logs[each].append(None)
        is_unknown = self._rng.random() < 0.2
        self._note(
            {"op": "txn", "type": "info" if is_unknown else "ok" if is_committed else "fail", "id": txn}
        )

    def _poll(self, process: int, key: str, **more: object) -> None:
        at, log = self._positions[process, key], self._logs[key]
        upto = min(len(log), at + self._rng.randint(1, POLL_RECORDS_MAX))
        self._positions[process, key] = upto
        records = [[offset, log[offset]] for offset in range(at, upto) if log[offset] is not None]
        poll = {"op": "poll", "type": "ok", "process": process, "key": key, "records": records}
        if "txn" in more:
            poll["position"] = upto
        self._note({**poll, "high_watermark": len(log), "last_stable_offset": len(log), **more})

    def _read(self, key: str) -> None:
        self._poll(READER, key)

    def _read_in_a_transaction(self, key: str) -> None:
        """Read in the transaction that reads, or begin it; sometimes end it."""
        txn = self._reading = self._number() if self._reading is None else self._reading
        self._poll(TRANSACTIONAL_READER, key, txn=txn)
        if self._rng.random() < 0.3:
            self._note({"op": "txn", "type": self._rng.choice(("ok", "fail", "info")), "id": txn})
            self._reading = None

    def _read_in_a_group(self, key: str) -> None:
        """Deliver records, usually commit them, and sometimes request the committed offset."""
        self._poll(MEMBER, key, group="g")
        whose = {"process": MEMBER, "group": "g", "key": key}
        committed = self._positions[-MEMBER, key]
        if self._rng.random() < 0.7:
            number, offset = self._number(), self._positions[MEMBER, key]
            commit = {"op": "commit", "id": number, **whose}
            self._note({**commit, "type": "invoke", "offset": offset, "epoch": 1})
            self._note({**commit, "type": "ok"})
            self._positions[-MEMBER, key] = committed = offset
        if committed:
            question = {"op": "committed", "id": self._number(), **whose}
            self._note({**question, "type": "invoke"})
            self._note({**question, "type": "ok", "offset": committed})

    def _ask(self, key: str) -> None:
        question = {"op": "offsets", "process": ASKER, "id": self._number(), "key": key}
        self._note({**question, "type": "invoke"})
        self._note({**question, "type": "ok", "high_watermark": len(self._logs[key])})


def valid_history(seed: int, steps: int) -> list[Event]:
    """Return the valid history of a seed."""
    return Workload(random.Random(seed)).run(steps)
