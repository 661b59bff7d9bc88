"""Building blocks for the cases of alerts: series in promtool's notation, and the expected alerts.

`5+0x10` means the value 5 followed by ten more of the same value, one for each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

WHERE: Final = {"namespace": "shop", "fairlead_cluster": "main"}
BROKER: Final = {**WHERE, "broker": "main-a-0"}
MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Firing:
    """The labels and the description of a firing alert."""

    labels: dict[str, str]
    description: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series by name with one value per step, the minute of the evaluation, and the alert that fires."""

    alert: str
    series: dict[str, str]
    minute: int
    fires: Firing | None = field(default=None)
    step_minutes: int = 1
    """Step between the values of a series, which is also the evaluation interval of the rules."""


def labelled(name: str, **labels: str) -> str:
    """Return a series of the cluster main in namespace shop."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {**WHERE, **labels}.items())
    return f"{name}{{{inside}}}"


def of_broker(name: str, **labels: str) -> str:
    """Return a series of the broker main-a-0 of the cluster main."""
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
    """Return a case that fires and a case that does not, evaluated at the same minute."""
    firing = Firing(labels=labels, description=says)
    return (
        Case(alert=alert, series=fires, minute=minute, fires=firing, step_minutes=step_minutes),
        Case(alert=alert, series=calm, minute=minute, step_minutes=step_minutes),
    )


def histogram(name: str, slow: str, quick: str, **labels: str) -> dict[str, str]:
    """Return a histogram with `quick` observations up to 0.05 s, and `slow` observations up to 0.5 s in total."""
    return {
        of_broker(f"{name}_bucket", le="0.05", **labels): quick,
        of_broker(f"{name}_bucket", le="0.5", **labels): slow,
        of_broker(f"{name}_bucket", le="+Inf", **labels): slow,
    }
