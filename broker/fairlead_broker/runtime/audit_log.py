"""The audit log: one JSON line for each refusal and each change, in every security mode (rules U1 to U4).

`server` reports the end of each request; `security_view` reports refused tokens and operations. The objects that refuse
a request serve many requests at once, so a context variable identifies the refused request. The lines go to the logger
`fairlead.audit` of the standard library, regardless of the broker's log level and format, and to the queue of the topic
`__audit`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from fairlead_api.audit_events import AUDIT_LOGGER, AuditEvent, AuditOutcome, AuditRecord, cut
from fairlead_api.configuration import AUDIT_TOPIC_KEY
from fairlead_api.principals import ANONYMOUS
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.refusal_sums import SUM_SECONDS, RefusalKind, RefusalSums
from fairlead_broker.access.would_be_denied import DeniedOperation
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.cluster_values import cluster_value
from fairlead_broker.credentials.failure_budget import network_of
from fairlead_broker.registry.metadata import ClusterMetadata

_LOGGER: Final = logging.getLogger(AUDIT_LOGGER)
# At level INFO the logger writes every line, so no refusal is missing.
_LOGGER.setLevel(logging.INFO)


LINES_MAX: Final = 10_000
"""Maximum number of lines queued for the topic."""


class AuditedRequest(Protocol):
    """Interface through which the audit log reads a request."""

    is_audited: bool
    """Whether an audit record of the request was written, or the request was added to the sum of equal refusals."""

    @property
    def audit_caller(self) -> Caller: ...  # noqa: D102
    @property
    def audit_facts(self) -> dict[str, str]:
        """Address, route and trace of the request."""
        ...


AUDITED_REQUEST: Final[ContextVar[Callable[[], AuditedRequest | None]]] = ContextVar(
    "audited_request", default=lambda: None
)
"""Weak reference to the request that the current task serves, for the audit records of refusals.

`server` sets the reference at the start of each request. Timers and tasks keep the context in which they were created,
often beyond the end of the request. A strong reference would keep the request alive and, if its body is incomplete, its
connection open.
"""


class AuditQueue:
    """Lines to be written to the topic, if the configuration of the cluster enables the topic."""

    def __init__(self, metadata: ClusterMetadata, dropped: Callable[[], None]) -> None:
        """`dropped` is called for each line that is dropped because the queue is full."""
        self._metadata = metadata
        self._dropped = dropped
        self.lines: deque[tuple[bytes, int]] = deque()
        """Lines with the times of their events, in microseconds."""
        self.filled = asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether the configuration of the cluster enables the topic."""
        return cluster_value(self._metadata, AUDIT_TOPIC_KEY) is True

    def add(self, line: bytes, at_us: int) -> None:
        """Add a line, or drop and count the line if the queue is full."""
        if not self.is_wanted:
            return
        if len(self.lines) >= LINES_MAX:
            self._dropped()
            return
        self.lines.append((line, at_us))
        self.filled.set()


class AuditLog:
    """Writer of audit records."""

    def __init__(self, clock: Clock, cluster_id: str, broker: int, queue: AuditQueue) -> None:
        """`queue`: queue of the lines that are written to the topic."""
        self._clock = clock
        self._queue = queue
        self._cluster_id = cluster_id
        self._broker = broker
        self._sums: RefusalSums[AuditRecord] = RefusalSums()

    def authentication_failed(self, source: str, problem: str, *, observed: bool) -> None:
        """Report a token that was not accepted. `source`: kind of token, or name of its issuer."""
        self._refuse(AuditEvent.AUTHENTICATION_FAILED, None, source, "", problem=problem, observed=observed)

    def denied(self, denied: DeniedOperation, *, observed: bool) -> None:
        """Report an operation that is not allowed.

        `observed`: whether the operation is executed although it is not allowed.
        """
        event = AuditEvent.WOULD_BE_DENIED if observed else AuditEvent.DENIED
        self._refuse(event, denied.principal, denied.operation, denied.resource, observed=observed)

    def refused(self, request: AuditedRequest, operation: str, resource: str, problem: str) -> None:
        """Report a request that was refused outside an access decision, unless the request already has a record."""
        if request.is_audited:
            return
        known = problem == "forbidden"
        event = AuditEvent.DENIED if known else AuditEvent.AUTHENTICATION_FAILED
        principal = request.audit_caller.principal if known else None
        self._refuse(event, principal, operation, resource, problem=problem, observed=False)

    def changed(
        self,
        request: AuditedRequest,
        event: AuditEvent,
        resource: str,
        *,
        status: int,
        problem: str | None,
        change: dict[str, object],
    ) -> None:
        """Report the answer to a call that changes the cluster."""
        outcome = AuditOutcome.SUCCEEDED if problem is None and status else AuditOutcome.FAILED
        self._write(
            self._record(
                event,
                outcome,
                **_caller(request.audit_caller),
                **request.audit_facts,
                resource=cut(resource) or None,
                status=status or None,
                problem=problem,
                change=change or None,
            )
        )

    def happened(self, event: AuditEvent, change: dict[str, object]) -> None:
        """Report an event of the broker itself."""
        self._write(self._record(event, AuditOutcome.SUCCEEDED, change=change))

    async def run(self) -> None:
        """Write the sums of equal refusals at a fixed interval; when cancelled, write the remaining sums."""
        try:
            while True:
                # The sums are written at fixed times; no event triggers the writing.
                await asyncio.sleep(SUM_SECONDS)  # noqa: TID251
                self.write_sums()
        finally:
            self.write_sums()

    def write_sums(self) -> None:
        """Write the sums of equal refusals."""
        for kind, record, count in self._sums.take():
            counted = msgspec.structs.replace(record, count=count)
            if kind.is_rest:
                counted = msgspec.structs.replace(counted, **_OF_ONE_REFUSAL)
                if not kind.caller:
                    counted = msgspec.structs.replace(counted, **_OF_ONE_CALLER)
            self._write(counted)

    def _refuse(
        self,
        event: AuditEvent,
        principal: str | None,
        operation: str,
        resource: str,
        *,
        observed: bool,
        problem: str | None = None,
    ) -> None:
        request = AUDITED_REQUEST.get()()
        facts: dict[str, object] = {}
        if request is not None:
            request.is_audited = True
            facts |= request.audit_facts
            if principal is not None:
                facts |= _caller(request.audit_caller)
        if principal is not None:
            facts["principal"] = principal
        record = self._record(
            event,
            AuditOutcome.OBSERVED if observed else AuditOutcome.REFUSED,
            **facts,
            operation=operation,
            resource=cut(resource) or None,
            problem=problem,
        )
        # Callers without a token are distinguished by their addresses, or by their networks with IPv6.
        address = network_of(str(facts.get("address", "")))
        caller = address if principal in (None, ANONYMOUS) else str(principal)
        if self._sums.add(RefusalKind(event, caller, operation, resource), record):
            self._write(record)

    def _record(self, event: AuditEvent, outcome: AuditOutcome, **facts: Any) -> AuditRecord:
        return AuditRecord(
            at=format_timestamp(self._clock.now_us()),
            cluster_id=self._cluster_id,
            broker=self._broker,
            event=event,
            outcome=outcome,
            **facts,
        )

    def _write(self, record: AuditRecord) -> None:
        line = msgspec.json.encode(record)
        _LOGGER.info("%s", line.decode())
        self._queue.add(line, self._clock.now_us())


_OF_ONE_REFUSAL: Final[Mapping[str, Any]] = dict.fromkeys(
    ("operation", "resource", "route", "problem", "traceparent")
)
"""Fields that a sum of different refusals leaves out."""
_OF_ONE_CALLER: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("principal", "token_id", "issuer", "kid", "address")),
    "groups": (),
}
"""Fields that a sum of refusals of different callers leaves out."""


def _caller(caller: Caller) -> dict[str, object]:
    """Return the fields of a record that name a caller."""
    return {
        "principal": cut(caller.principal),
        "groups": tuple(map(cut, caller.groups)),
        "token_id": caller.token_id,
        "issuer": caller.issuer,
        "kid": None if caller.key_id is None else cut(caller.key_id),
    }
