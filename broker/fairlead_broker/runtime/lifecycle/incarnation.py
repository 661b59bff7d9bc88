"""The incarnation of a broker: its epoch, and whether the cluster can still count on it.

One object for the whole run of the process. When the lease is lost, `cluster_entry` registers the broker again and
begins the next incarnation here. Serving compares its epoch with the present one, and every write names the epoch of
its decision, so that no decision of an ended incarnation is written by the next (protocol section 3, rules 1 and 7).
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.coordination.membership import Membership


class Incarnation:
    """What the runtime knows of its own registration."""

    def __init__(self, membership: Membership) -> None:
        """Begin the first life of this process."""
        self._membership = membership
        self._listeners: list[Callable[[], None]] = []

    @property
    def broker(self) -> BrokerId:
        """Id of this broker, the same in every life."""
        return self._membership.broker_id

    @property
    def epoch(self) -> BrokerEpoch:
        """The newest life; it only grows. It is on disk before it stands here."""
        return self._membership.broker_epoch

    @property
    def confirmed(self) -> bool:
        """Whether the lease of this life cannot have ended yet."""
        return self._membership.is_confirmed

    def confirms(self, epoch: BrokerEpoch) -> bool:
        """Return whether the cluster can count on an incarnation: it is the newest one, and its lease is confirmed.

        Work of an ended incarnation must not wait for the lease of the next one (protocol section 3, rule 7).
        """
        return epoch == self.epoch and self.confirmed

    @property
    def membership(self) -> Membership:
        """The registration of this life. One that was kept belongs to the life in which it was taken."""
        return self._membership

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call a function, on the loop, when a new incarnation has begun; return a function that ends the calls.

        It must not block and must not raise. That the lease is in doubt has no event: time alone makes it so.
        """
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def begin(self, membership: Membership) -> None:
        """Go on in a new life, whose epoch the data directory holds already."""
        assert membership.broker_id == self.broker, "a life belongs to one broker"
        assert membership.broker_epoch > self.epoch, "broker epochs only grow"
        self._membership = membership
        for listener in tuple(self._listeners):
            listener()
