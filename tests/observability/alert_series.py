"""Of what the cases of alerts are made: series in promtool's notation, and what fires under them.

`5+0x10` is 5 and ten times the same, one value a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

WHERE: Final = {"namespace": "shop", "fairlead_cluster": "main"}
BROKER: Final = {**WHERE, "broker": "main-a-0"}
MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Firing:
    """What an alert says when it fires."""

    labels: dict[str, str]
    description: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series by name with a value every so many minutes, the minute at which is looked, and what fires then."""

    alert: str
    series: dict[str, str]
    minute: int
    fires: Firing | None = field(default=None)
    step_minutes: int = 1
    """Rules are evaluated as often as there are values."""


def labelled(name: str, **labels: str) -> str:
    """Return a series of Prometheus of cluster main in namespace shop."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {**WHERE, **labels}.items())
    return f"{name}{{{inside}}}"


def of_broker(name: str, **labels: str) -> str:
    """Return a series of its broker main-a-0."""
    return labelled(name, broker="main-a-0", **labels)


def of_operator(name: str, **labels: str) -> str:
    """Return a series of the operator, or of Spark, in namespace shop."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {"namespace": "shop", **labels}.items())
    return f"{name}{{{inside}}}"


def pair(
    alert: str,
    minute: int,
    fires: dict[str, str],
    says: str,
    labels: dict[str, str],
    calm: dict[str, str],
    step_minutes: int = 1,
) -> tuple[Case, Case]:
    """Return a case that fires and a case that does not, looked at in the same minute."""
    firing = Firing(labels=labels, description=says)
    return (
        Case(alert=alert, series=fires, minute=minute, fires=firing, step_minutes=step_minutes),
        Case(alert=alert, series=calm, minute=minute, step_minutes=step_minutes),
    )


def histogram(name: str, slow: str, quick: str, **labels: str) -> dict[str, str]:
    """Return a histogram of which `quick` took at most 0.05 s, and `slow` in all at most 0.5 s."""
    return {
        of_broker(f"{name}_bucket", le="0.05", **labels): quick,
        of_broker(f"{name}_bucket", le="0.5", **labels): slow,
        of_broker(f"{name}_bucket", le="+Inf", **labels): slow,
    }
