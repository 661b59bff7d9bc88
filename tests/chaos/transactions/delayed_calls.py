"""Programs that write in transactions over plain HTTP; some calls arrive long after their program has continued.

A late call is sent after a random delay of up to 90 seconds; its program treats it as unanswered at once and continues:
it aborts after a late record or commit, commits after a late abort, and begins again after a late begin. The brokers
therefore get commits, aborts and records of transactions that have ended, and begins that fence the running program.

Each transaction has two records in each of two topics; their values name the program, the round and the record. At the
end, readers of committed records must have seen all records of a transaction or none, and each record once; they must
have seen all records if any call was answered with `committed`, and none if any call was answered with `aborted`. The
sends, the outcomes and the reads of a reader that ran throughout form a history, which the checker must find valid.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyreqwest.exceptions import PyreqwestError

from chaos_cluster import Answer, ChaosCluster, call, http_client, pause
from history_checker import Report, check
from history_recorder import HistoryRecorder
from recorded_reads import RecordedReads

if TYPE_CHECKING:
    from pyreqwest.client import Client

TOPICS: Final = ("left", "right")
PARTITIONS: Final = 2
RECORDS: Final = 2
"""Number of records of a transaction in each topic."""
PROGRAMS: Final = 3
LATE_SHARE: Final = 0.25
"""Fraction of the calls that arrive late."""
ROUND_SECONDS: Final = 0.3
CALL_SECONDS: Final = 5.0
BEGIN: Final = "/v1/transactions"
KEYS: Final = tuple(f"{topic}-{number}" for topic in TOPICS for number in range(PARTITIONS))
"""Partitions, as they are named in the history."""
OUTCOMES: Final = {"transaction_committed": "committed", "transaction_aborted": "aborted"}


@dataclass(slots=True)
class DelayedCalls:
    """The programs, their late calls, and the answers about each transaction."""

    cluster: ChaosCluster
    rng: random.Random
    delay_seconds_max: float
    counts: Counter[str] = field(default_factory=Counter)
    answers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Outcomes in the answers to calls, by the value of the transaction's records."""
    history: HistoryRecorder = field(default_factory=lambda: HistoryRecorder({"retries": False}))
    _values: dict[str, str] = field(default_factory=dict)
    """Value of the records of each transaction."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """Number of each transaction in the history."""
    _late: set[asyncio.Task[None]] = field(default_factory=set)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run the programs until `end`, or until cancelled."""
        async with http_client() as client, asyncio.TaskGroup() as group:
            for number in range(PROGRAMS):
                group.create_task(self._program(client, f"delayed-{number}"))
        self._has_ended.set()

    async def end(self) -> None:
        """End the programs, and deliver the calls that are still late."""
        self._is_over.set()
        await self._has_ended.wait()
        await asyncio.gather(*self._late)

    @property
    def reads(self) -> RecordedReads:
        """Readers of all partitions."""
        return RecordedReads(self.cluster, self.rng, self.history, KEYS)

    async def report(self, ends: dict[str, int]) -> Report:
        """Read everything up to the ends of the partitions, and return what the checker finds in the history."""
        await self.reads.read_all(ends)
        for transaction, number in self._numbers.items():
            told = self.answers[self._values[transaction]]
            outcome = "ok" if "committed" in told else "fail" if told else "info"
            self.history.events.append({"op": "txn", "type": outcome, "id": number})
        self.history.events.append({"op": "end", "keys": ends})
        return check(self.history.events)

    async def _program(self, client: Client, name: str) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            with suppress(_UnansweredError):
                await self._round(client, name, f"{name}-{number}")
            await pause(self.rng.uniform(0, ROUND_SECONDS))

    async def _round(self, client: Client, name: str, value: str) -> None:
        begun = await self._send(client, "begin", BEGIN, {"name": name, "timeout_ms": 5_000})
        if begun.status != 201:
            return
        transaction = begun.json["transaction"]
        self._values[transaction] = value
        self._numbers[transaction] = len(self._numbers)
        try:
            for topic in TOPICS:
                partition = self.rng.randrange(PARTITIONS)
                headers = {"Fairlead-Transaction": transaction}
                body = {"records": [{"value": each} for each in _records(value)]}
                place = f"/v1/topics/{topic}/partitions/{partition}/records"
                request = self._begin_send(f"{topic}-{partition}", transaction)
                if (await self._send(client, "produce", place, body, headers, request)).status != 200:
                    raise _UnansweredError
        except _UnansweredError:
            await self._end(client, transaction, "abort")
            return
        first = "abort" if self.rng.random() < 0.2 else "commit"
        try:
            await self._end(client, transaction, first)
        except _UnansweredError:
            await self._end(client, transaction, "commit" if first == "abort" else "abort")

    async def _end(self, client: Client, transaction: str, how: str) -> None:
        self._note(transaction, await self._send(client, how, f"{BEGIN}/{transaction}:{how}", {}))

    def _note(self, transaction: str, answer: Answer) -> None:
        told = answer.json.get("state") if answer.status == 200 else OUTCOMES.get(answer.json.get("code", ""))
        if told is not None:
            self.answers[self._values[transaction]].add(told)

    def _begin_send(self, key: str, transaction: str) -> int:
        """Record the start of a send as a separate process, since its answer may be unknown; return its number."""
        process = self.history.process()
        value, txn = self._values[transaction], self._numbers[transaction]
        self.history.note(
            "send", "invoke", process=process, id=process, key=key, values=_records(value), txn=txn
        )
        return process

    def _end_send(self, request: int | None, answer: Answer | None) -> None:
        """Record the outcome of a send."""
        if request is None:
            return
        if answer is None:
            kind, told = "info", {}
        elif answer.status == 200:
            kind, told = "ok", {"offset": answer.json["base_offset"]}
        else:
            kind, told = ("fail" if answer.json["side_effect"] == "none" else "info"), {}
        self.history.note("send", kind, process=request, id=request, **told)

    async def _send(
        self,
        client: Client,
        kind: str,
        path: str,
        body: Any,
        headers: dict[str, str] | None = None,
        request: int | None = None,
    ) -> Answer:
        """Send a call to any broker. Raises `_UnansweredError` for a late call and for a call without an answer.

        `request`: number of a send in the history.
        """
        url = self.rng.choice(self.cluster.urls) + path
        if self.rng.random() < LATE_SHARE:
            self._late.add(asyncio.create_task(self._send_late(kind, url, body, headers, request)))
            raise _UnansweredError
        try:
            answer = await call(client, "POST", url, body, headers=headers, seconds=CALL_SECONDS)
        except (PyreqwestError, TimeoutError) as error:
            self._end_send(request, None)
            raise _UnansweredError from error
        self._end_send(request, answer)
        return answer

    async def _send_late(
        self, kind: str, url: str, body: Any, headers: dict[str, str] | None, request: int | None
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0, self.delay_seconds_max)):
                await self._is_over.wait()
        try:
            async with http_client() as client:
                answer = await call(client, "POST", url, body, headers=headers, seconds=CALL_SECONDS)
        except (PyreqwestError, TimeoutError):
            self._end_send(request, None)
            self.counts["late_calls_unanswered"] += 1
            return
        self._end_send(request, answer)
        code = answer.json.get("code", "") if answer.status >= 400 else str(answer.status)
        self.counts[f"late_{kind}_{code}"] += 1
        if kind in ("commit", "abort"):
            self._note(url.rpartition("/")[2].partition(":")[0], answer)

    def wrong(self, read: dict[tuple[str, int], list[bytes]]) -> dict[str, list[str]]:
        """Return the transactions whose committed records contradict each other or the answers."""
        seen = Counter((topic, value.decode()) for (topic, _), values in read.items() for value in values)
        visible = Counter(value.rpartition(".")[0] for _, value in seen)
        """Number of different records that readers got of each transaction."""
        return {
            "delayed_torn": sorted(
                value for value, count in visible.items() if count < len(TOPICS) * RECORDS
            ),
            "delayed_twice": sorted(value for (_, value), count in seen.items() if count > 1),
            "delayed_answered_both": sorted(value for value, told in self.answers.items() if len(told) > 1),
            "delayed_lost": sorted(
                value
                for value, told in self.answers.items()
                if told == {"committed"} and value not in visible
            ),
            "delayed_aborted_read": sorted(
                value for value, told in self.answers.items() if told == {"aborted"} and value in visible
            ),
        }


def _records(value: str) -> list[str]:
    """Return the values of a transaction's records in a topic."""
    return [f"{value}.{number}" for number in range(RECORDS)]


class _UnansweredError(Exception):
    """The program received no answer to a call."""
