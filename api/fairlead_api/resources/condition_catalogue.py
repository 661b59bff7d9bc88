"""The one catalogue of conditions: types, their reasons, what each means and what to do.

The operator sets no condition outside of it, the custom resource definitions take their default from it, and the
page for troubleshooting is made from it. Whoever adds a reason writes its meaning and the next move into one of its
parts: `ready_conditions`, `blocked_conditions`, `advice_conditions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.advice_conditions import INVALID_SPEC, RECONCILIATION_PAUSED, WARNING
from fairlead_api.resources.blocked_conditions import (
    ETCD_HEALTHY,
    ROLL_BLOCKED,
    SCALE_DOWN_BLOCKED,
    STORAGE_BLOCKED,
)
from fairlead_api.resources.condition_definitions import ConditionName, ConditionType, Reason
from fairlead_api.resources.ready_conditions import PROGRESSING, READY

CONDITIONS: Final[Mapping[ConditionName, ConditionType]] = {
    each.name: each
    for each in (
        READY,
        PROGRESSING,
        INVALID_SPEC,
        ROLL_BLOCKED,
        SCALE_DOWN_BLOCKED,
        STORAGE_BLOCKED,
        ETCD_HEALTHY,
        WARNING,
        RECONCILIATION_PAUSED,
    )
}
"""Every type by its name, in the order in which a status lists them."""


def reason_of(type_: ConditionName, reason: str) -> Reason | None:
    """Return the entry of a reason, or None where the type has no such reason."""
    return next((each for each in CONDITIONS[type_].reasons if each.name == reason), None)
