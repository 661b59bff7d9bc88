"""Facts about a managed etcd for its plan and its health, derived from the desired and the observed state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from fairlead_operator.plan.etcd_observed import (
    EtcdClaim,
    EtcdMember,
    EtcdPod,
    EtcdRestart,
    EtcdSet,
    ObservedEtcd,
)
from fairlead_operator.render.etcd import quota_of
from fairlead_operator.render.inputs import PLAIN_ETCD, EtcdTransport

ROOM: Final = 0.9
"""Fraction of the quota below which a store, including the next request, counts as having space."""
REQUEST_BYTES_MAX: Final = 2 << 20
"""Free space in bytes below which a store may have refused a request; etcd accepts requests of up to 1.5 MiB."""

TEMPLATE_CHANGED: Final = "its template changed"
VOLUME_GROWN: Final = "its volume has grown"


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Place of a current or future member: the name of its pod and its peer URL."""

    name: str
    peer_url: str
    other_peer_url: str = ""
    """Peer URL with the scheme that is being replaced, which a member keeps until its peer URL is changed."""


@dataclass(frozen=True, slots=True)
class EtcdWish:
    """The desired etcd of a Cluster."""

    replicas: int
    pod_spec_hash: str
    """Fingerprint of the desired pods."""
    places: tuple[EtcdPlace, ...]
    """Places of all current and future members, by ordinal."""
    volume_bytes: int = 0
    """Desired size of the volumes in bytes; 0 if the size does not matter."""
    transport: EtcdTransport = PLAIN_ETCD
    restores: bool = False
    """Whether an etcd without data starts from a snapshot."""


@dataclass(frozen=True)
class EtcdView:
    """Facts about a managed etcd.

    An ordinal identifies a pod of the StatefulSet. The peer URL of a member determines the member's ordinal.
    """

    wish: EtcdWish
    observed: ObservedEtcd

    @property
    def live(self) -> EtcdSet | None:
        """The live StatefulSet; None if there is no StatefulSet."""
        return self.observed.live

    @property
    def knows_members(self) -> bool:
        """Whether a majority confirmed the member list.

        Without a confirmed list, the properties about members are meaningless.
        """
        return self.observed.members is not None

    @cached_property
    def restoring(self) -> bool:
        """Whether the first member starts from a snapshot: no volume has a member's data, and no member answers."""
        recorded = any(claim.member_id for claim in self.observed.claims.values())
        return self.wish.restores and not recorded and not self.observed.answers

    @cached_property
    def formed(self) -> bool:
        """Whether every initial member has been seen running once.

        Once every initial member has run, an empty volume means that data was lost.
        """
        if self.restoring:
            return False
        recorded = {ordinal for ordinal, claim in self.observed.claims.items() if claim.member_id}
        if self.live is None:
            return bool(recorded)
        return self.live.state == "existing" or (
            self.live.replicas > 0 and recorded >= set(range(self.live.replicas))
        )

    @cached_property
    def members(self) -> Mapping[int, EtcdMember]:
        """The members whose peer URL belongs to a desired member, keyed and sorted by ordinal."""
        ordinals = {
            url: ordinal
            for ordinal, place in enumerate(self.wish.places)
            for url in (place.peer_url, place.other_peer_url)
        }
        placed = {
            ordinals[url]: member
            for member in self.observed.members or ()
            for url in member.peer_urls
            if url in ordinals
        }
        return dict(sorted(placed.items()))

    @cached_property
    def unmoved(self) -> int | None:
        """The ordinal of a member whose peer URL still has the scheme that is being replaced; None if there is none."""
        return next(
            (
                ordinal
                for ordinal, member in self.members.items()
                if self.wish.places[ordinal].other_peer_url in member.peer_urls
            ),
            None,
        )

    @cached_property
    def strangers(self) -> tuple[EtcdMember, ...]:
        """Members without a pod created by the operator: a user added them, and the operator does not change them."""
        placed = {member.member_id for member in self.members.values()}
        return tuple(each for each in self.observed.members or () if each.member_id not in placed)

    @cached_property
    def joining(self) -> int | None:
        """The ordinal of the member that is a learner or has never started; None if no member joins."""
        return next(
            (ordinal for ordinal, member in self.members.items() if member.learner or not member.name), None
        )

    @cached_property
    def leader_id(self) -> int:
        """The id of the leader that most members follow; 0 if there is no leader."""
        followed = Counter(answer.leader_id for answer in self.observed.answers.values() if answer.leader_id)
        return min(followed, key=lambda leader: (-followed[leader], leader), default=0)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        """Ordinals of voters that do not answer and whose claim contains no data or the data of a different member."""
        return tuple(
            ordinal
            for ordinal, member in self.members.items()
            if ordinal != self.joining and not self.runs(ordinal) and self._has_other_volume(ordinal, member)
        )

    @cached_property
    def missing(self) -> int | None:
        """The lowest ordinal that should have a member but has none; None if no member is missing."""
        return next((each for each in range(self.wish.replicas) if each not in self.members), None)

    @cached_property
    def surplus(self) -> int | None:
        """The highest ordinal of a surplus member; None if there is no surplus member."""
        return max((each for each in self.members if each >= self.wish.replicas), default=None)

    @property
    def all_healthy(self) -> bool:
        """Whether the members are exactly the desired members, and every member is a healthy voter."""
        return self.formed and self.knows_members and not self.unfinished and self.members_healthy

    @property
    def members_healthy(self) -> bool:
        """Whether every member whose peer URL belongs to a desired member is healthy."""
        return all(map(self.healthy, self.members))

    @property
    def all_healthy_but_full(self) -> bool:
        """Whether the members are exactly the desired members, and are healthy except for full stores."""
        if not self.formed or not self.knows_members or self.unfinished:
            return False
        return all(self.runs(each) and self.observed.answers[each].healthy_but_full for each in self.members)

    @property
    def smallest_volume(self) -> int | None:
        """The size of the smallest volume in bytes, counting pending growth; None while no size is known."""
        return min(
            (
                claim.size_bytes
                for claim in self.observed.claims.values()
                if claim.size_bytes and not claim.deleting
            ),
            default=None,
        )

    @property
    def quota_wanted(self) -> int:
        """The store quota that all pods should have after the StatefulSet is applied and the volumes have grown."""
        if not self.wish.volume_bytes:
            return 0 if self.live is None else self.live.quota_bytes
        return quota_of(Fraction(self.wish.volume_bytes), self.smallest_volume)

    @cached_property
    def restarts_due(self) -> Mapping[int, str]:
        """The reason for each pending restart by ordinal, including restarts that must wait."""
        due = dict[int, str]()
        for ordinal, pod in sorted(self.observed.pods.items()):
            if pod.deleting:
                continue
            claim = self.observed.claims.get(ordinal)
            grown = claim is not None and pod.created < claim.waits_for_restart_since
            if pod.restart:
                due[ordinal] = pod.restart
            elif pod.pod_spec_hash != self.wish.pod_spec_hash:
                due[ordinal] = TEMPLATE_CHANGED
            elif grown or 0 < pod.quota_bytes < self.quota_wanted:
                due[ordinal] = VOLUME_GROWN
        return due

    @cached_property
    def restart(self) -> EtcdRestart | None:
        """The restart in progress, which lasts until the restarted member is ready and follows a leader; else None."""
        last = self.observed.restart
        if last is None:
            return None
        pod = self.observed.pods.get(last.ordinal)
        if not self.knows_members or pod is None or not pod.ready or pod.deleting:
            return last
        if last.ordinal not in self.members:
            return None
        back = self.runs(last.ordinal) and self.observed.answers[last.ordinal].healthy_but_full
        return None if back else last

    @property
    def unfinished(self) -> bool:
        """Whether the members differ from the desired members."""
        if not self.formed:
            return True
        changes = (self.joining, self.missing, self.surplus)
        return self.knows_members and (bool(self.lost) or any(change is not None for change in changes))

    @property
    def up_to_date(self) -> bool:
        """Whether the StatefulSet and all its pods have the desired template."""
        live = "" if self.live is None else self.live.pod_spec_hash
        hashes = {live, *(pod.pod_spec_hash for pod in self.observed.pods.values())}
        return hashes == {self.wish.pod_spec_hash}

    def runs(self, ordinal: int) -> bool:
        """Return whether the pod with this ordinal answered as the member with this ordinal."""
        answer = self.observed.answers.get(ordinal)
        return answer is not None and answer.member_id == self.members[ordinal].member_id

    def healthy(self, ordinal: int) -> bool:
        """Return whether the member answers, follows a leader and has no alarm."""
        return self.runs(ordinal) and self.observed.answers[ordinal].healthy

    def leads(self, ordinal: int) -> bool:
        """Return whether the member is the leader."""
        return self.members[ordinal].member_id == self.leader_id

    def is_counted(self, claim: EtcdClaim) -> bool:
        """Return whether the data of a claim belongs to a current member."""
        return claim.member_id in {member.hex_id for member in self.observed.members or ()}

    def others_carry(self, ordinal: int) -> bool:
        """Return whether a majority of the voters is healthy, without counting this member."""
        rest = [each for each, member in self.members.items() if each != ordinal and not member.learner]
        voters = len(rest) + sum(not member.learner for member in self.strangers)
        return sum(map(self.healthy, rest)) > voters // 2

    def may_go(self, ordinal: int) -> bool:
        """Return whether the pod may be deleted without data loss; a claim being deleted disappears with its pod."""
        claim = self.observed.claims.get(ordinal)
        if claim is None or not claim.deleting:
            return True
        if ordinal in self.members:
            return self.others_carry(ordinal)
        return self.knows_members and not self.is_counted(claim)

    def outdated(self, pod: EtcdPod) -> bool:
        """Return whether a pod differs from the desired template and, if deleted now, would be recreated from it."""
        live = self.live
        settled = live is not None and live.settled and live.pod_spec_hash == self.wish.pod_spec_hash
        return settled and pod.pod_spec_hash != self.wish.pod_spec_hash

    def outgrown(self, ordinal: int) -> bool:
        """Return whether a pod must restart so that the file system or the store can use the whole volume.

        etcd reads its quota only at startup, and a full store refuses all writes until etcd is restarted with a larger
        quota.
        """
        pod, claim = self.observed.pods[ordinal], self.observed.claims.get(ordinal)
        if claim is not None and pod.created < claim.waits_for_restart_since:
            return True
        live = self.live
        if live is None or not live.settled or (claim is not None and claim.growing):
            return False
        return 0 < pod.quota_bytes < live.quota_bytes

    def has_room(self, ordinal: int) -> bool:
        """Return whether the store of a responding member has space left in its quota."""
        pod = self.observed.pods.get(ordinal)
        if pod is None:
            return False
        return self.observed.answers[ordinal].store_bytes + REQUEST_BYTES_MAX < ROOM * pod.quota_bytes

    def _has_other_volume(self, ordinal: int, member: EtcdMember) -> bool:
        claim = self.observed.claims.get(ordinal)
        return claim is not None and not claim.deleting and claim.member_id != member.hex_id
