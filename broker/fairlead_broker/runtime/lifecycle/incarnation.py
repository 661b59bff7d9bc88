"""The incarnation of a broker: its epoch, and whether its lease is still confirmed.

One `Incarnation` object exists for the whole run of the process. When the lease is lost, `cluster_entry` registers the
broker again and the object begins the next incarnation. The components that serve calls compare their epoch with the
current epoch, and every write names the epoch in which it was decided. Thus no decision of an ended incarnation is
written by the next incarnation (protocol section 3, rules 1 and 7).
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.coordination.membership import Membership


class Incarnation:
    """State of this broker's registration in its current incarnation."""

    def __init__(self, membership: Membership) -> None:
        """Begin the first incarnation of this process."""
        self._membership = membership
        self._listeners: list[Callable[[], None]] = []

    @property
    def broker(self) -> BrokerId:
        """Id of this broker, which is the same in every incarnation."""
        return self._membership.broker_id

    @property
    def epoch(self) -> BrokerEpoch:
        """Epoch of the current incarnation.

        Epochs only increase, and each epoch is on disk before this property returns it.
        """
        return self._membership.broker_epoch

    @property
    def confirmed(self) -> bool:
        """Whether the lease of the current incarnation cannot have expired yet."""
        return self._membership.is_confirmed

    def confirms(self, epoch: BrokerEpoch) -> bool:
        """Return whether an incarnation is the current one with a confirmed lease.

        Work of an ended incarnation must not rely on the lease of the next incarnation (protocol section 3, rule 7).
        """
        return epoch == self.epoch and self.confirmed

    @property
    def membership(self) -> Membership:
        """Registration of the current incarnation.

        A `Membership` that a caller has stored still refers to the incarnation in which it was read.
        """
        return self._membership

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call a function on the event loop when an incarnation begins.

        Return a function that cancels the subscription. The function must not block and must not raise. The function is
        not called when the lease comes into doubt.
        """
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def begin(self, membership: Membership) -> None:
        """Start the next incarnation, whose epoch the data directory already stores."""
        assert membership.broker_id == self.broker, "all incarnations belong to one broker"
        assert membership.broker_epoch > self.epoch, "broker epochs only increase"
        self._membership = membership
        for listener in tuple(self._listeners):
            listener()
