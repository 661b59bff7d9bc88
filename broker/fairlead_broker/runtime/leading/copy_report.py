"""Progress of a mirror's partition at its leader: the source's last answer, and the skipped and dropped records."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.identifiers import Offset
from fairlead_broker.peers.positions import MirrorProgress


@dataclass(slots=True)
class CopyReport:
    """Progress since this broker began to lead the partition."""

    source_high_watermark: Offset | None = None
    answered_at: float | None = None
    """Monotonic time, in seconds, of the last answer from the source."""
    first_answered_at: float | None = None
    caught_up_at: float | None = None
    """Monotonic time, in seconds, of the last answer after which the mirror had every record of the source."""
    fault: str | None = None
    accepted: str | None = None
    """Fault that an operator has acknowledged, whose loss the next step takes."""
    faulted_after: int = 0
    """Number of acknowledgements of the link when the partition stopped."""
    problem: str | None = None
    skipped: int = 0
    truncated: int = 0

    def answered(self, source_high_watermark: Offset, now: float) -> None:
        """Record an answer from the source."""
        self.source_high_watermark, self.answered_at, self.problem = source_high_watermark, now, None
        if self.first_answered_at is None:
            self.first_answered_at = now

    def caught_up(self, now: float) -> None:
        """Record that the mirror has every record below the high watermark of the last answer."""
        self.caught_up_at = now

    def stopped(self, fault: str, acknowledgements: int) -> None:
        """Record that the partition copies nothing until the next acknowledgement."""
        self.fault, self.faulted_after = fault, acknowledgements

    def acknowledge(self, acknowledgements: int) -> None:
        """Let the partition continue if an operator has acknowledged its fault."""
        if self.fault is not None and acknowledgements > self.faulted_after:
            self.fault, self.accepted = None, self.fault

    def behind_seconds(self, now: float) -> float:
        """Return the seconds since the mirror last had every record of the source, or since the first answer."""
        since = self.caught_up_at if self.caught_up_at is not None else self.first_answered_at
        return 0.0 if since is None else max(0.0, now - since)

    def progress(self, now: float) -> MirrorProgress:
        """Return the progress for other brokers."""
        return MirrorProgress(
            source_high_watermark=self.source_high_watermark,
            behind_seconds=None if self.answered_at is None else self.behind_seconds(now),
            fault=self.fault,
            problem=self.problem,
            skipped=self.skipped,
            truncated=self.truncated,
            answer_age_seconds=None if self.answered_at is None else max(0.0, now - self.answered_at),
        )
