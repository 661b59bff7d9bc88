"""Lines of the audit log of brokers that run in the process of a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from fairlead_api.audit_events import AUDIT_LOGGER, AuditEvent, AuditRecord


class Lines(logging.Handler):
    """Lines of the audit log since the last read."""

    def __init__(self) -> None:
        super().__init__()
        self.every: list[str] = []
        self._seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.every.append(record.getMessage())

    def take(self) -> list[AuditRecord]:
        """Return the audit records that were logged since the last call."""
        found = [msgspec.json.decode(line, type=AuditRecord) for line in self.every[self._seen :]]
        self._seen = len(self.every)
        return found

    def changes(self, event: AuditEvent) -> list[dict[str, object]]:
        """Return the changes that all records of an event report."""
        records = [msgspec.json.decode(line, type=AuditRecord) for line in self.every]
        return [dict(each.change or {}) for each in records if each.event is event]


@contextmanager
def audit_lines() -> Iterator[Lines]:
    """Yield the lines that are logged during the block."""
    handler, logger = Lines(), logging.getLogger(AUDIT_LOGGER)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
