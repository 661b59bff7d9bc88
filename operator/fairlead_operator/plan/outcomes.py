"""What came of the orders of a plan, as far as the status tells of it. Filled by `reconcile/`, read by `status`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead_operator.plan.actions import RestartBroker


@dataclass(frozen=True, slots=True)
class RestartRefusal:
    """The brokers gave no permit."""

    broker: int
    message: str
    partitions: tuple[str, ...] = ()
    """Those that forbid it; none where another restart has the permit."""


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """Collected while the orders are carried out; nothing of it stops the orders that follow."""

    restarted: list[RestartBroker] = field(default_factory=list)
    refusals: list[RestartRefusal] = field(default_factory=list)
    refused_resizes: list[str] = field(default_factory=list)
    """Sentences of the API server on claims that may not grow."""
    refused_objects: list[str] = field(default_factory=list)
    """Sentences of the API server on objects that it does not take."""
    refused_calls: list[str] = field(default_factory=list)
    """Sentences of the brokers on what they do not do."""
    unavailable: str = ""
    """Why the brokers could not be asked something after all."""
