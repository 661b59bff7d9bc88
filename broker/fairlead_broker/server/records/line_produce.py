"""Produce calls with an NDJSON body of unlimited duration: each group of lines is stored and acknowledged immediately.

Callers: ``produce`` and ``topic_produce``. A group that is refused does not delay other groups; the last line of the
answer reports whether all lines were stored. When the limit of produce calls is reached, a stream waits.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from fairlead_api.bodies.json_records import Encoding
from fairlead_api.bodies.json_slices import RECORD_BYTES_MAX
from fairlead_api.bodies.media_types import NDJSON
from fairlead_api.bodies.requests import ProducedLines, ProducedSummary
from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.clock import Clock
from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.body import CUT_OFF, ClientGone, ProduceBodyLimits
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.records.line_stream import Lines, LineStream
from fairlead_broker.server.records.produce_frames import partition_result
from fairlead_broker.server.records.produce_head import refuse_idempotency_key, refuse_producer_headers
from fairlead_broker.server.records.produced_records import read_lines
from fairlead_broker.server.records.record_storing import RecordStoring, Split
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import topic_to_write

OVERLOADED: Final = "overloaded"
PAUSE_SECONDS: Final = 0.1
ONE_REQUEST_EACH: Final = "none for a body of lines, which becomes many batches"


class LineProduce:
    """Handler of produce calls with an NDJSON body."""

    def __init__(
        self, broker: Broker, forwarding: Forwarding, clock: Clock, bodies: ProduceBodyLimits
    ) -> None:
        self._broker = broker
        self._storing = RecordStoring(broker, forwarding)
        self._clock = clock
        self._bodies = bodies

    async def answer(
        self,
        call: Call,
        acks: Acks,
        timeout_seconds: float,
        split: Split,
        transaction: TransactionId | None,
    ) -> None:
        """Store the lines as they arrive. Raises a refusal of the whole call only before the first line is read."""
        refuse_producer_headers(call, ONE_REQUEST_EACH)
        refuse_idempotency_key(call)
        call.refuse_coded_body()
        await topic_to_write(call, self._broker)
        stream = LineStream(call.body_reader, min(self._bodies.json_bytes_max, RECORD_BYTES_MAX))
        totals = _Totals()
        await call.start_stream([(b"content-type", NDJSON.encode())])
        try:
            async for lines in stream.groups():
                produced = await self._produced(
                    call, lines, acks, timeout_seconds, split, transaction, totals
                )
                await call.send_piece(msgspec.json.encode(produced) + b"\n")
        except ProblemError as problem:
            await _end(call, totals, problem)
        except ClientGone:
            # If the endpoint sent nothing, the HTTP server would answer with 500, and the client may still be reading.
            await _end(call, totals, ProblemError("malformed_request", CUT_OFF))
        await call.send_piece(msgspec.json.encode(totals.summary()) + b"\n", more=False)

    async def _produced(
        self,
        call: Call,
        lines: Lines,
        acks: Acks,
        timeout_seconds: float,
        split: Split,
        transaction: TransactionId | None,
        totals: _Totals,
    ) -> ProducedLines:
        first, last = lines[0][0], lines[-1][0]
        try:
            await self._admitted(call, timeout_seconds)
            records = await read_lines(lines, Encoding(call.query.text("encoding")), self._clock.now_us())
            target = await topic_to_write(call, self._broker)
            _, shares, outcomes = await self._storing.store(
                call, target, records, split, acks, timeout_seconds, None, transaction
            )
        except ProblemError as problem:
            totals.add(len(lines), 0, problem.status)
            return ProducedLines(
                first_line=first, last_line=last, status=problem.status, problem=dict(problem.to_document())
            )
        finally:
            call.body_reader.end_call()
        stored = sum(
            share.records.count
            for share, outcome in zip(shares, outcomes, strict=True)
            if not isinstance(outcome, ProblemError)
        )
        status = 207 if stored < len(lines) else (202 if acks is Acks.NONE else 200)
        totals.add(len(lines), stored, status)
        if status == 202:
            return ProducedLines(first_line=first, last_line=last, status=status)
        results = [
            partition_result(share.partition, outcome)
            for share, outcome in zip(shares, outcomes, strict=True)
        ]
        return ProducedLines(first_line=first, last_line=last, status=status, results=results)

    async def _admitted(self, call: Call, seconds_max: float) -> None:
        """Wait until the produce call is admitted. Raises overloaded when the wait times out."""
        end = self._clock.monotonic() + seconds_max
        while True:
            try:
                call.begin_produce()
            except ProblemError:
                if self._clock.monotonic() >= end:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)  # noqa: TID251 - a stream waits until it is admitted instead of being refused
            else:
                return


async def _end(call: Call, totals: _Totals, problem: ProblemError) -> None:
    """Send the problem that ends the body."""
    totals.status = problem.status
    await call.send_piece(msgspec.json.encode({"problem": problem.to_document()}) + b"\n")


class _Totals:
    """Totals of the outcomes for all lines so far."""

    def __init__(self) -> None:
        self.status = 200
        self._records = 0
        self._stored = 0

    def add(self, records: int, stored: int, status: int) -> None:
        """Add the outcome of a group of lines to the totals."""
        self._records += records
        self._stored += stored
        if status >= 207 and self.status < 207:
            self.status = 207
        elif status == 202 and self.status == 200:
            self.status = 202

    def summary(self) -> ProducedSummary:
        """Return the totals for the last line of the answer."""
        return ProducedSummary(
            status=self.status,
            records=self._records,
            stored=self._stored,
            refused=self._records - self._stored,
        )
