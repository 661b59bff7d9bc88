"""Next step of a managed etcd, computed from the desired and the observed state. Only one member changes at a time.

A new member is added as a learner, gets its pod, catches up with the other members, and is promoted to a voter. A
member is removed from etcd before its pod is deleted. The claim of a volume records which member's data the volume
contains. If the claim of a member that has voted does not record the member, the volume is empty, and a new member
replaces the old one: a member that restarts with its old id and an empty volume has forgotten its votes. No
irreversible change is ordered while etcd has no quorum. The plan is computed from live objects only, so a step that was
interrupted by a crash of the operator is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.quantities import quantity
from fairlead_operator.naming import Scheme, etcd_member_name, etcd_peer_url
from fairlead_operator.plan.etcd_actions import (
    AddLearner,
    DeleteEtcdClaim,
    DeleteEtcdPod,
    DisarmNoSpace,
    EtcdAction,
    EtcdPlan,
    MoveMember,
    PromoteLearner,
    RecordMember,
    RemoveMember,
    TransferLeadership,
)
from fairlead_operator.plan.etcd_health import etcd_changes, etcd_rows, etcd_verdict
from fairlead_operator.plan.etcd_observed import EtcdClaim, ObservedEtcd
from fairlead_operator.plan.etcd_view import TEMPLATE_CHANGED, VOLUME_GROWN, EtcdPlace, EtcdView, EtcdWish
from fairlead_operator.render.etcd import etcd_pod_hash
from fairlead_operator.render.inputs import NO_MEMBER_JOINS, PLAIN_ETCD, EtcdInputs, EtcdTransport, Images

PLACES: Final = 5
"""Maximum number of members that the resource allows."""
STEP_SECONDS: Final = 2.0
"""Interval between passes during a change of members: etcd sends no event when a learner has caught up."""
TROUBLE_SECONDS: Final = 10.0
"""Interval between passes while members do not answer."""

OTHER_SCHEME: Final[Mapping[Scheme, Scheme]] = {"http": "https", "https": "http"}

Step: TypeAlias = tuple[EtcdAction, ...]
"""Actions of the next step. An empty step means that the plan waits, and no later step may be taken instead."""


def etcd_wish(cluster: Cluster, images: Images, transport: EtcdTransport = PLAIN_ETCD) -> EtcdWish:
    """Return the desired etcd of a Cluster, with the peer scheme of the current step."""
    managed = cluster.spec.etcd.managed
    assert managed is not None, f"the etcd of {cluster.name} is external"
    return EtcdWish(
        replicas=managed.replicas,
        pod_spec_hash=etcd_pod_hash(managed, images, transport),
        places=tuple(
            EtcdPlace(
                etcd_member_name(cluster.name, ordinal),
                etcd_peer_url(cluster.namespace, cluster.name, ordinal, scheme=transport.peer_scheme),
                etcd_peer_url(
                    cluster.namespace, cluster.name, ordinal, scheme=OTHER_SCHEME[transport.peer_scheme]
                ),
            )
            for ordinal in range(PLACES)
        ),
        volume_bytes=int(quantity(managed.storage.size)),
        transport=transport,
        restores=managed.restore is not None,
    )


def plan_etcd(wish: EtcdWish, observed: ObservedEtcd) -> EtcdPlan:
    """Return the plan with the next step."""
    view = EtcdView(wish, observed)
    inputs = replace(_inputs(view), volume_bytes=view.smallest_volume, transport=wish.transport)
    actions = (*_records(view), *_change(view, inputs))
    return EtcdPlan(
        inputs,
        actions,
        etcd_rows(view, inputs.replicas),
        etcd_verdict(view),
        _pause(view, actions),
        etcd_changes(view),
        view.restart,
    )


def _inputs(view: EtcdView) -> EtcdInputs:
    live = view.live
    if view.restoring:
        place = view.wish.places[0]
        return EtcdInputs(1, f"{place.name}={place.peer_url}", "new", restores=True)
    if not view.formed:
        replicas = live.replicas if live is not None and live.replicas else view.wish.replicas
        first = ",".join(f"{place.name}={place.peer_url}" for place in view.wish.places[:replicas])
        return EtcdInputs(replicas, first, "new")
    recorded = (ordinal for ordinal, claim in view.observed.claims.items() if claim.member_id)
    if not view.knows_members:
        # The live members are unknown, so every pod whose volume may contain a member's data is kept with its settings.
        replicas = max(live.replicas if live else 0, max(recorded, default=-1) + 1)
        initial_cluster = (
            live.initial_cluster if live is not None and live.state == "existing" else NO_MEMBER_JOINS
        )
        return EtcdInputs(replicas, initial_cluster)
    running = live.replicas if live is not None else view.wish.replicas
    replicas = max(max(view.members, default=-1) + 1, min(running, view.wish.replicas))
    return EtcdInputs(replicas, NO_MEMBER_JOINS if view.joining is None else _all_members(view))


def _all_members(view: EtcdView) -> str:
    """Return the initial cluster for a joining member, which must be exactly the member list of etcd."""
    placed = [(view.wish.places[ordinal].name, member) for ordinal, member in view.members.items()]
    others = [(member.name or member.hex_id, member) for member in view.strangers]
    return ",".join(f"{name}={member.peer_urls[0]}" for name, member in [*placed, *others])


def _records(view: EtcdView) -> Step:
    """Return actions that record on claims which member's data is in the volume, since later steps use the record."""
    return tuple(
        RecordMember(ordinal, claim.uid, member.hex_id)
        for ordinal, member in view.members.items()
        if (claim := view.observed.claims.get(ordinal)) is not None
        and not claim.deleting
        and claim.member_id != member.hex_id
        and view.runs(ordinal)
    )


def _change(view: EtcdView, inputs: EtcdInputs) -> Step:
    stuck = _stuck(view)
    if view.restoring and not stuck:
        return _restart_outdated(view, 0, inputs, "it starts from a snapshot")
    if stuck or not view.formed or not view.knows_members:
        return stuck
    steps = (
        _join(view, inputs),
        _replace(view),
        _add(view),
        _take_away(view),
        _forget(view, inputs),
        _empty(view),
        _move(view),
        _restart(view),
        _disarm(view),
    )
    return next((step for step in steps if step is not None), ())


def _stuck(view: EtcdView) -> Step:
    """Return actions that delete outdated, unready pods; no member is lost, even if other members are down."""
    return tuple(
        DeleteEtcdPod(ordinal, pod.uid, "it is not ready and has an old template")
        for ordinal, pod in sorted(view.observed.pods.items())
        if view.outdated(pod)
        and not pod.ready
        and not pod.deleting
        and ordinal not in view.observed.answers
        and view.may_go(ordinal)
    )


def _join(view: EtcdView, inputs: EtcdInputs) -> Step | None:
    """Return the next step for the joining member; None if no member joins."""
    ordinal = view.joining
    if ordinal is None:
        return None
    member = view.members[ordinal]
    if ordinal >= view.wish.replicas:
        return (RemoveMember(ordinal, member.member_id, "it has not joined yet and is no longer desired"),)
    claim = view.observed.claims.get(ordinal)
    if view.runs(ordinal):
        recorded = claim is not None and claim.member_id == member.hex_id
        return (PromoteLearner(ordinal, member.member_id),) if recorded and member.learner else ()
    if claim is not None and claim.member_id not in {"", member.hex_id}:
        return _clear(view, ordinal, claim)
    return _restart_outdated(view, ordinal, inputs)


def _restart_outdated(
    view: EtcdView, ordinal: int, inputs: EtcdInputs, reason: str = "it joins etcd as a new member"
) -> Step:
    """Return the deletion of a pod with an outdated initial cluster, once the StatefulSet has the current value."""
    live, pod = view.live, view.observed.pods.get(ordinal)
    words = (inputs.initial_cluster, inputs.state)
    is_current = live is not None and live.settled and (live.initial_cluster, live.state) == words
    if pod is None or pod.deleting or not is_current or (pod.initial_cluster, pod.state) == words:
        return ()
    return (DeleteEtcdPod(ordinal, pod.uid, reason),)


def _replace(view: EtcdView) -> Step | None:
    """Return the removal of a member whose volume is empty; a later step adds a new member instead."""
    if not view.lost:
        return None
    ordinal = view.lost[0]
    if not view.others_carry(ordinal):
        return ()
    return (RemoveMember(ordinal, view.members[ordinal].member_id, "its volume is lost"),)


def _add(view: EtcdView) -> Step | None:
    """Return the step that adds the next missing member when all other members are healthy."""
    ordinal = view.missing
    if ordinal is None:
        return None
    if not view.members_healthy:
        return ()
    claim = view.observed.claims.get(ordinal)
    if claim is not None and claim.deleting:
        # A pod may still use the deleted claim if an earlier deletion was interrupted or if a user deleted the claim.
        return _throw_away(view, ordinal, "its volume is being deleted") if view.may_go(ordinal) else ()
    if claim is not None and claim.member_id:
        return _clear(view, ordinal, claim)
    return (AddLearner(ordinal, view.wish.places[ordinal].peer_url, "it is missing"),)


def _take_away(view: EtcdView) -> Step | None:
    """Return the step that removes the surplus member with the highest ordinal, after a transfer of its leadership."""
    ordinal = view.surplus
    if ordinal is None:
        return None
    if not view.others_carry(ordinal):
        return ()
    if view.leads(ordinal):
        heir = next((each for each in view.members if each != ordinal and view.healthy(each)), None)
        assert heir is not None, "others_carry ensures that another member is healthy"
        return (TransferLeadership(ordinal, heir, view.members[heir].member_id),)
    return (RemoveMember(ordinal, view.members[ordinal].member_id, "it is no longer desired"),)


def _forget(view: EtcdView, inputs: EtcdInputs) -> Step | None:
    """Return actions that delete the claims of removed members, whose data would prevent new members from starting."""
    claims = tuple(
        DeleteEtcdClaim(ordinal, claim.uid, "its member was removed from etcd")
        for ordinal, claim in sorted(view.observed.claims.items())
        if ordinal >= inputs.replicas
        and ordinal not in view.observed.pods
        and not view.is_counted(claim)
        and not claim.deleting
    )
    return claims or None


def _empty(view: EtcdView) -> Step | None:
    """Return the deletion of a volume, if a user requested it and all other members are healthy and have a quorum."""
    asked = [ordinal for ordinal, pod in sorted(view.observed.pods.items()) if pod.empty_volume]
    for ordinal in asked:
        others = [each for each in view.members if each != ordinal]
        if ordinal in view.members and all(map(view.healthy, others)) and view.others_carry(ordinal):
            return _throw_away(view, ordinal, "an annotation requests the deletion of the pod and its volume")
    return None


def _move(view: EtcdView) -> Step | None:
    """Return the change to one member's peer URL if all members are healthy; None if every peer URL is as desired."""
    ordinal = view.unmoved
    if ordinal is None:
        return None
    if not view.all_healthy:
        return ()
    member, place = view.members[ordinal], view.wish.places[ordinal]
    return (MoveMember(ordinal, member.member_id, place.peer_url),)


def _restart(view: EtcdView) -> Step | None:
    """Return the restart of one outdated or annotated pod, the leader's pod last, if all members are healthy.

    A restart for a larger volume is also ordered when stores are full, since the restart gives the stores more space.
    """
    pods = view.observed.pods
    calm = view.all_healthy_but_full and all(pod.ready and not pod.deleting for pod in pods.values())
    if not calm:
        return None
    due = {
        ordinal: reason
        for ordinal in view.members
        if ordinal in pods and (reason := _why_restart(view, ordinal)) and view.may_go(ordinal)
    }
    if not due:
        return None
    ordinal = min(due, key=lambda each: (view.leads(each), -each))
    return (DeleteEtcdPod(ordinal, pods[ordinal].uid, due[ordinal]),)


def _why_restart(view: EtcdView, ordinal: int) -> str:
    """Return the reason for restarting a pod now; empty if the pod need not restart now."""
    pod = view.observed.pods[ordinal]
    if view.all_healthy and (pod.restart or view.outdated(pod)):
        return pod.restart or TEMPLATE_CHANGED
    return VOLUME_GROWN if view.outgrown(ordinal) else ""


def _disarm(view: EtcdView) -> Step | None:
    """Return the action that disarms the `NOSPACE` alarm once all stores have space, for example in larger volumes."""
    if view.all_healthy or not view.all_healthy_but_full or not all(map(view.has_room, view.members)):
        return None
    return (DisarmNoSpace(min(view.members)),)


def _clear(view: EtcdView, ordinal: int, claim: EtcdClaim) -> Step:
    """Return the deletion of a removed member's volume, so that a new member can start; empty for a current member."""
    if view.is_counted(claim):
        return ()
    return _throw_away(view, ordinal, "its data belongs to a member that was removed from etcd")


def _throw_away(view: EtcdView, ordinal: int, reason: str) -> Step:
    claim, pod = view.observed.claims.get(ordinal), view.observed.pods.get(ordinal)
    step: Step = ()
    if claim is not None and not claim.deleting:
        step += (DeleteEtcdClaim(ordinal, claim.uid, reason),)
    if pod is not None and not pod.deleting:
        step += (DeleteEtcdPod(ordinal, pod.uid, reason),)
    return step


def _pause(view: EtcdView, actions: Step) -> float | None:
    under_way = view.unfinished or not view.up_to_date or bool(view.restarts_due) or view.restart is not None
    if actions or (under_way and view.observed.answers):
        return STEP_SECONDS
    return None if view.all_healthy else TROUBLE_SECONDS
