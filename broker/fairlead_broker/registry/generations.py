"""Generations of replicas, which distinguish a replica's records from those of an earlier replica on the same broker.

`isr`, `quorum`, leaders and followers use this module (protocol section 4, rule 5). The module is pure.
"""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import BrokerId
from fairlead_broker.registry.records import Replica


def generation_in(replica: Replica, directory: str) -> int:
    """Return the generation of a replica in a directory; it is 0 unless the partition record names the directory."""
    return replica.generation if replica.directory == directory else 0


def with_next_generation(
    replicas: tuple[Replica, ...], broker: BrokerId, directory: str | None
) -> tuple[Replica, ...]:
    """Return the replicas with the next generation for a broker's replica, so that its earlier reports do not count.

    `directory` is the replica's current directory, or None for the directory that the record names.
    """
    return tuple(
        _next_generation(replica, directory or replica.directory) if replica.broker == broker else replica
        for replica in replicas
    )


def _next_generation(replica: Replica, directory: str) -> Replica:
    return msgspec.structs.replace(
        replica, directory=directory, generation=generation_in(replica, directory) + 1
    )
