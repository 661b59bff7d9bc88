"""Typed settings of a consumer in a group: subscription, commits and timeouts.

`Consumer` creates the settings once, and every value is checked here. The module must not depend on how a setting is
used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from fairlead.connection.metadata import check_name
from fairlead.errors import SettingError, error_of
from fairlead.group.member import Subscription
from fairlead.settings import (
    Duration,
    OffsetPolicy,
    ResetPolicy,
    check_text,
    policy_of,
    seconds_of,
    texts_of,
)
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import (
    ASSIGNORS,
    REBALANCE_TIMEOUT_MS_MAX,
    REBALANCE_TIMEOUT_MS_MIN,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError

PROCESSING_SECONDS_DEFAULT: Final = 300.0

_UNSAID: Final[Mapping[str, object]] = {
    "start": "earliest",
    "commit": "after",
    "auto_commit_interval": "5s",
    "processing_timeout": "5m",
    "session_timeout": "45s",
    "rebalance_timeout": "5m",
}
"""Default values of `Consumer`'s group arguments; the default of arguments that are not listed is None."""

RebalanceCallback: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None] | None]
"""Plain or async function that receives the assigned or revoked partitions."""


class CommitMode(StrEnum):
    """Commit mode, which decides whether the batch being processed is read again or lost after a crash."""

    AFTER = "after"
    """Each batch is committed after its processing, which is complete when the next batch is taken: at least once."""
    BEFORE = "before"
    """Each batch is committed before it is handed out: at most once."""
    MANUAL = "manual"
    """Offsets are committed only by `commit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a consumer as a member of its group."""

    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: ResetPolicy = OffsetPolicy.EARLIEST
    """Start of a partition without a committed offset; the offset policy `error` is called `none` in this setting."""
    commit: CommitMode = CommitMode.AFTER
    commit_interval_seconds: float = 5.0
    """Interval of commits with `after`; records processed since the last commit are read again after a crash."""
    processing_seconds_max: float = PROCESSING_SECONDS_DEFAULT
    """Maximum time between two calls that take a batch, after which the member leaves. Heartbeats continue while a
    batch is processed."""
    session_timeout_seconds: float = 45.0
    """Time without a heartbeat after which the group removes the member."""
    rebalance_timeout_seconds: float = 300.0
    """Time that the group waits for a member to release a partition."""
    instance_id: str | None = None
    """Id of a static member: the group keeps the partitions for a consumer that restarts with this id within the
    session timeout."""
    rack: str | None = None
    assignor: str | None = None
    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None

    def __post_init__(self) -> None:
        """Check the values; an invalid name raises the same error as the cluster would, before any call."""
        for name, text in (
            ("group", self.group),
            ("pattern", self.pattern),
            ("instance_id", self.instance_id),
            ("rack", self.rack),
            ("assignor", self.assignor),
        ):
            check_text(text, name)
        _check_callback(self.on_assigned, "on_assigned")
        _check_callback(self.on_revoked, "on_revoked")
        _check_group_name(self.group)
        if self.instance_id is not None:
            _check_group_name(self.instance_id)
        for topic in self.topics:
            check_name(topic)
        if bool(self.topics) == bool(self.pattern):
            raise SettingError("topics", self.topics or None, "names of topics, or pattern instead of them")
        _check_span(
            "session_timeout", self.session_timeout_seconds, SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX
        )
        _check_span(
            "rebalance_timeout",
            self.rebalance_timeout_seconds,
            REBALANCE_TIMEOUT_MS_MIN,
            REBALANCE_TIMEOUT_MS_MAX,
        )
        for name, seconds in (
            ("auto_commit_interval", self.commit_interval_seconds),
            ("processing_timeout", self.processing_seconds_max),
        ):
            if seconds <= 0:
                raise SettingError(name, seconds, "above 0")
        if self.assignor is not None and self.assignor not in ASSIGNORS:
            raise SettingError("assignor", self.assignor, f"one of {', '.join(ASSIGNORS)}")

    @property
    def subscription(self) -> Subscription:
        """Subscription that the member sends to the coordinator."""
        return Subscription(
            topics=self.topics,
            topic_pattern=self.pattern,
            instance_id=self.instance_id,
            rack=self.rack,
            assignor=self.assignor,
            session_timeout_ms=round(self.session_timeout_seconds * 1000),
            rebalance_timeout_ms=round(self.rebalance_timeout_seconds * 1000),
        )


def group_settings_of(
    group: str | None,
    *,
    topics: str | Iterable[str] | None,
    pattern: str | None,
    start: OffsetPolicy | Duration,
    commit: CommitMode | str,
    commit_interval: Duration,
    processing: Duration,
    session: Duration,
    rebalance: Duration,
    instance_id: str | None,
    rack: str | None,
    assignor: str | None,
    on_assigned: RebalanceCallback | None,
    on_revoked: RebalanceCallback | None,
) -> GroupSettings | None:
    """Return the group settings from a consumer's arguments; None if the consumer has no group."""
    if group is None:
        if topics is not None or pattern is not None:
            raise SettingError("group", None, "a name with topics or pattern; without a group use assign")
        _check_unsaid(
            start=start, commit=commit, auto_commit_interval=commit_interval, processing_timeout=processing,
            session_timeout=session, rebalance_timeout=rebalance, instance_id=instance_id, rack=rack,
            assignor=assignor, on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip
        return None
    return GroupSettings(
        group=group,
        topics=() if topics is None else texts_of(topics, "topics"),
        pattern=pattern,
        start=policy_of(start, "start"),
        commit=commit_mode_of(commit),
        commit_interval_seconds=seconds_of(commit_interval, "auto_commit_interval"),
        processing_seconds_max=seconds_of(processing, "processing_timeout"),
        session_timeout_seconds=seconds_of(session, "session_timeout"),
        rebalance_timeout_seconds=seconds_of(rebalance, "rebalance_timeout"),
        instance_id=instance_id,
        rack=rack,
        assignor=assignor,
        on_assigned=on_assigned,
        on_revoked=on_revoked,
    )


def commit_mode_of(value: CommitMode | str) -> CommitMode:
    """Return the commit mode for `"after"`, `"before"` or `"manual"`."""
    try:
        return CommitMode(value)
    except ValueError:
        raise SettingError("commit", value, '"after", "before" or "manual"') from None


def _check_unsaid(**given: object) -> None:
    """Refuse group arguments of a consumer without a group, since they would have no effect."""
    for name, value in given.items():
        if value != _UNSAID.get(name):
            hint = "; assign has its own argument start" if name == "start" else ""
            raise SettingError(name, value, f"omitted without a group, since it has no effect{hint}")


def _check_callback(value: object, name: str) -> None:
    if value is not None and not callable(value):
        raise SettingError(name, value, "a function, plain or async, that takes the partitions")


def _check_group_name(name: str) -> None:
    try:
        check_group_name(name)
    except ProblemError as problem:
        raise error_of(problem, subject=f"group {name!r}") from problem


def _check_span(name: str, seconds: float, least_ms: int, most_ms: int) -> None:
    if not least_ms <= seconds * 1000 <= most_ms:
        allowed = f"{least_ms // 1000} s to {most_ms // 60_000} minutes"
        raise SettingError(name, f"{seconds:g} s", allowed)
