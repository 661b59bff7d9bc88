"""Operations that a caller may carry out on a resource, with Kafka's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_broker.access.caller_access import CallerAccess

_NUMBERS: Final[Mapping[Kind, Mapping[Operation, tuple[int, ...]]]] = {
    Kind.TOPIC: {
        Operation.READ: (3,),
        Operation.WRITE: (4,),
        Operation.CREATE: (5,),
        Operation.DELETE: (6,),
        # Kafka has separate operations for configurations.
        Operation.ALTER: (7, 11),
        Operation.DESCRIBE: (8, 10),
    },
    Kind.GROUP: {Operation.READ: (3,), Operation.DELETE: (6,), Operation.DESCRIBE: (8, 10)},
    Kind.CLUSTER: {
        Operation.CREATE: (5,),
        Operation.ALTER: (7, 11),
        Operation.DESCRIBE: (8, 10),
    },
}
"""Numbers of Kafka's operations that correspond to each operation on a kind of resource."""


def authorized_operations(access: CallerAccess, kind: Kind, name: str = SINGLE_NAME) -> set[int]:
    """Return the operations that a caller may carry out on a resource; the question is not counted as a refusal."""
    return {
        number
        for operation, numbers in _NUMBERS[kind].items()
        if not access.holds or access.rules.decide(operation, kind, name).allowed
        for number in numbers
    }
