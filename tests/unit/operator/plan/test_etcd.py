"""The plan of a managed etcd: its members, and their pods and volume claims.

The tests share one file because each of them changes one fact about the same healthy etcd.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead_api.resources.cluster_status import EtcdMemberStatus
from fairlead_operator.plan.etcd import STEP_SECONDS, TROUBLE_SECONDS, etcd_wish, plan_etcd
from fairlead_operator.plan.etcd_actions import (
    AddLearner,
    DeleteEtcdClaim,
    DeleteEtcdPod,
    EtcdPlan,
    PromoteLearner,
    RecordMember,
    RemoveMember,
    TransferLeadership,
)
from fairlead_operator.plan.etcd_health import EXTERNAL_SECONDS, plan_external
from fairlead_operator.plan.etcd_observed import (
    EtcdClaim,
    EtcdMember,
    EtcdPod,
    EtcdSet,
    EtcdStatus,
    ObservedEtcd,
)
from fairlead_operator.plan.etcd_view import EtcdPlace, EtcdWish
from fairlead_operator.render import NO_MEMBER_JOINS
from refusals import missing
from render_kit import IMAGES, cluster_of

OLD, NEW = "old", "new"


def wish_of(replicas: int = 3) -> EtcdWish:
    """Return a desired etcd with the given number of members and the newest template."""
    return EtcdWish(replicas, NEW, tuple(EtcdPlace(f"e-{n}", f"http://e-{n}:2380") for n in range(5)))


def member_of(ordinal: int, *, learner: bool = False, started: bool = True) -> EtcdMember:
    """Return the member list entry of an ordinal, with the ordinal plus 10 as the member id."""
    name = f"e-{ordinal}" if started else ""
    return EtcdMember(10 + ordinal, name, (f"http://e-{ordinal}:2380",), learner)


def answer_of(
    ordinal: int, *, leader: int = 0, learner: bool = False, errors: tuple[str, ...] = ()
) -> EtcdStatus:
    """Return the status answer from a member, by default with e-0 as the leader."""
    return EtcdStatus(10 + ordinal, 10 + leader, learner, "3.6.0", errors)


POD = EtcdPod("pod", ready=True, initial_cluster=NO_MEMBER_JOINS, state="existing", pod_spec_hash=NEW)


def healthy(count: int = 3) -> ObservedEtcd:
    """Return a healthy etcd with the given number of members."""
    ordinals = range(count)
    return ObservedEtcd(
        live=EtcdSet(count, NO_MEMBER_JOINS, "existing", pod_spec_hash=NEW),
        pods={n: replace(POD, uid=f"pod-{n}") for n in ordinals},
        claims={n: EtcdClaim(f"claim-{n}", f"{10 + n:x}") for n in ordinals},
        members=tuple(map(member_of, ordinals)),
        answers={n: answer_of(n) for n in ordinals},
    )


def listed(observed: ObservedEtcd, *more: EtcdMember) -> tuple[EtcdMember, ...]:
    """Return the listed members followed by more members."""
    assert observed.members is not None
    return (*observed.members, *more)


def set_of(observed: ObservedEtcd) -> EtcdSet:
    """Return the observed StatefulSet."""
    assert observed.live is not None
    return observed.live


def without_answer(observed: ObservedEtcd, *ordinals: int) -> ObservedEtcd:
    """Return a copy in which the given pods are not ready and do not answer."""
    pods = {n: replace(pod, ready=n not in ordinals) for n, pod in observed.pods.items()}
    answers = {n: answer for n, answer in observed.answers.items() if n not in ordinals}
    return replace(observed, pods=pods, answers=answers)


def identities(plan: EtcdPlan) -> list[tuple[type, int, Any]]:
    """For each action, return its type and the ordinal and id of the member or pod, without the reason."""
    actions: list[Any] = list(plan.actions)
    return [(type(each), each.ordinal, getattr(each, "uid", None) or each.member_id) for each in actions]


def kinds(plan: EtcdPlan) -> list[type]:
    """Return the types of the planned actions."""
    return [type(action) for action in plan.actions]


def test_the_first_members_start_together_as_a_new_cluster() -> None:
    """The initial members of an etcd start together as a new cluster, each with the complete member list."""
    plan = plan_etcd(wish_of(), ObservedEtcd())

    assert plan.inputs is not None
    assert (plan.inputs.replicas, plan.inputs.state) == (3, "new")
    assert plan.inputs.initial_cluster == "e-0=http://e-0:2380,e-1=http://e-1:2380,e-2=http://e-2:2380"
    assert plan.actions == ()
    assert (plan.verdict.status, plan.verdict.reason) == ("False", "Starting")
    assert "e-0, e-1, e-2" in plan.verdict.message
    assert plan.requeue_seconds == TROUBLE_SECONDS


def starting(recorded: int, wish: int = 3) -> EtcdPlan:
    """Return the plan for three running initial members, of which the first `recorded` have a record in their claim."""
    seen = healthy()
    claims = {n: claim if n < recorded else replace(claim, member_id="") for n, claim in seen.claims.items()}
    live = EtcdSet(3, "first", "new", pod_spec_hash=NEW)
    return plan_etcd(wish_of(wish), replace(seen, claims=claims, live=live))


def test_a_new_cluster_is_formed_when_every_member_is_written_down() -> None:
    """A change to the spec waits until every member is recorded in its claim and the new etcd is formed."""
    half, whole = starting(1, wish=1), starting(3)

    assert half.inputs is not None
    assert whole.inputs is not None
    assert (half.inputs.state, half.inputs.replicas) == ("new", 3)
    assert half.actions == (RecordMember(1, "claim-1", "b"), RecordMember(2, "claim-2", "c"))
    assert half.requeue_seconds == STEP_SECONDS
    assert (whole.inputs.state, whole.inputs.initial_cluster) == ("existing", NO_MEMBER_JOINS)


def test_members_whose_statefulset_is_gone_come_back_on_their_data() -> None:
    """Members whose StatefulSet was deleted are restarted with their volume claims, not as a new cluster."""
    plan = plan_etcd(wish_of(1), replace(healthy(), live=None, pods={}, members=None, answers={}))
    found = plan_etcd(wish_of(), replace(healthy(), live=None, pods={}))

    assert plan.inputs is not None
    assert found.inputs is not None
    assert (plan.inputs.replicas, plan.inputs.state) == (3, "existing")
    assert plan.inputs.initial_cluster == NO_MEMBER_JOINS
    assert found.inputs.replicas == 3


def test_a_healthy_etcd_is_left_alone() -> None:
    """A healthy etcd gets no action and no requeue, and its status shows the leader."""
    plan = plan_etcd(wish_of(), healthy())

    assert plan.actions == ()
    assert plan.requeue_seconds is None
    assert (plan.verdict.status, plan.verdict.reason) == ("True", "Healthy")
    assert plan.status.ready == plan.status.replicas == 3
    assert [row.role for row in plan.status.members] == ["leader", "follower", "follower"]
    assert plan.status.members[1] == EtcdMemberStatus(name="e-1", id="b", role="follower", healthy=True)


def test_a_missing_member_is_added_as_a_learner() -> None:
    """The lowest missing member is added as a learner when all members are healthy, before its pod exists."""
    plan = plan_etcd(wish_of(5), healthy())
    sick = plan_etcd(wish_of(5), without_answer(healthy(), 2))

    assert plan.actions == (AddLearner(3, "http://e-3:2380", "it is missing"),)
    assert plan.inputs is not None
    assert plan.inputs.replicas == 3
    assert plan.verdict.reason == "ChangingMembers"
    assert "e-3" in plan.verdict.message
    assert sick.actions == ()
    assert sick.verdict.reason == "MembersUnhealthy"


def joining(**others: Any) -> ObservedEtcd:
    """Return an etcd of three members to which the learner e-3 was added."""
    told = ",".join(f"e-{n}=http://e-{n}:2380" for n in range(4))
    seen = healthy()
    given: dict[str, Any] = {
        "live": EtcdSet(4, told, "existing", pod_spec_hash=NEW),
        "members": listed(seen, member_of(3, learner=True, started=False)),
        "pods": {**seen.pods, 3: replace(POD, uid="pod-3", ready=False, initial_cluster=told)},
        "claims": {**seen.claims, 3: EtcdClaim("claim-3")},
    }
    return replace(seen, **{**given, **others})


def test_a_learner_gets_a_pod_that_knows_all_members() -> None:
    """The pod of a learner gets the member list of etcd in the order of ordinals."""
    plan = plan_etcd(wish_of(5), joining(pods=healthy().pods))

    assert plan.inputs is not None
    assert plan.inputs.replicas == 4
    assert plan.inputs.initial_cluster.split(",")[3] == "e-3=http://e-3:2380"
    assert plan.actions == ()
    assert plan.verdict.reason == "ChangingMembers"
    assert "e-3 joins" in plan.verdict.message


def test_a_learner_is_written_down_before_it_votes() -> None:
    """A learner is promoted only after its member id is recorded in its claim, so that data loss can be detected."""
    runs = {**healthy().answers, 3: answer_of(3, learner=True)}
    named = listed(healthy(), member_of(3, learner=True))
    first = plan_etcd(wish_of(5), joining(members=named, answers=runs))
    claims = {**healthy().claims, 3: EtcdClaim("claim-3", "d")}
    second = plan_etcd(wish_of(5), joining(members=named, answers=runs, claims=claims))
    started = listed(healthy(), replace(member_of(3), name=""))
    voter = plan_etcd(wish_of(5), joining(members=started, answers=runs, claims=claims))

    assert first.actions == (RecordMember(3, "claim-3", "d"),)
    assert second.actions == (PromoteLearner(3, 13),)
    assert [row.role for row in second.status.members][-1] == "learner"
    assert voter.actions == ()


def test_a_pod_without_an_initial_cluster_is_replaced() -> None:
    """A pod that has no initial cluster to join is deleted when its StatefulSet has the current member list."""
    pods = {**healthy().pods, 3: replace(POD, uid="pod-3", ready=False)}
    plan = plan_etcd(wish_of(5), joining(pods=pods))
    unsettled = EtcdSet(4, set_of(joining()).initial_cluster, "existing", settled=False)
    too_early = plan_etcd(wish_of(5), joining(pods=pods, live=unsettled))
    going = {**pods, 3: replace(pods[3], deleting=True)}

    assert identities(plan) == [(DeleteEtcdPod, 3, "pod-3")]
    assert too_early.actions == ()
    assert plan_etcd(wish_of(5), joining(pods=going)).actions == ()


def test_a_learner_on_the_data_of_another_gets_an_empty_volume() -> None:
    """A learner whose claim has the data of a removed member gets a new claim and pod."""
    plan = plan_etcd(wish_of(5), joining(claims={**healthy().claims, 3: EtcdClaim("claim-3", "77")}))

    counted = plan_etcd(wish_of(5), joining(claims={**healthy().claims, 3: EtcdClaim("claim-3", "b")}))

    assert [(type(each), each.ordinal) for each in plan.actions] == [(DeleteEtcdClaim, 3), (DeleteEtcdPod, 3)]
    assert counted.actions == ()


def test_a_learner_that_is_not_wanted_any_more_goes() -> None:
    """A learner that is no longer desired is removed."""
    plan = plan_etcd(wish_of(), joining())

    assert kinds(plan) == [RemoveMember]
    assert plan.actions[0].ordinal == 3


def test_a_lost_volume_takes_its_member_out() -> None:
    """A member is removed when its claim was replaced and its pod does not answer, even if it was the leader."""
    seen = without_answer(healthy(), 0)
    seen = replace(
        seen,
        claims={**seen.claims, 0: EtcdClaim("another")},
        answers={n: answer_of(n, leader=1) for n in (1, 2)},
    )
    plan = plan_etcd(wish_of(), seen)

    assert identities(plan) == [(RemoveMember, 0, 10)]
    assert (plan.verdict.status, plan.verdict.reason) == ("False", "MemberLost")
    assert "e-0" in plan.verdict.message


def test_a_lost_volume_waits_for_the_others() -> None:
    """A member with a lost volume is not removed while the other members have no healthy majority."""
    seen = without_answer(healthy(), 1, 2)
    seen = replace(seen, claims={**seen.claims, 1: EtcdClaim("another")})
    plan = plan_etcd(wish_of(5), seen)

    assert plan.actions == ()
    assert plan.verdict.reason == "MemberLost"
    assert "e-1" in plan.verdict.message


def test_a_claim_on_its_way_out_is_no_lost_volume() -> None:
    """A claim being deleted does not count as lost, and an unlabelled claim gets the id of its answering member."""
    seen = without_answer(healthy(), 2)
    going = replace(seen, claims={**seen.claims, 2: EtcdClaim("claim-2", deleting=True)})
    answering = replace(healthy(), claims={**healthy().claims, 2: EtcdClaim("claim-2")})

    assert plan_etcd(wish_of(), going).actions == ()
    assert plan_etcd(wish_of(), answering).actions == (RecordMember(2, "claim-2", "c"),)


def test_the_place_of_a_member_that_was_taken_out_is_cleared_first() -> None:
    """The claim and the pod of a removed member are deleted before a new member is added in its place."""
    rest = replace(without_answer(healthy(), 2), members=tuple(map(member_of, range(2))))
    going = replace(rest, claims={**rest.claims, 2: EtcdClaim("claim-2", "c", deleting=True)})
    empty = replace(rest, claims={**rest.claims, 2: EtcdClaim("claim-2")})

    assert kinds(plan_etcd(wish_of(), rest)) == [DeleteEtcdClaim, DeleteEtcdPod]
    assert kinds(plan_etcd(wish_of(), going)) == [DeleteEtcdPod]
    assert plan_etcd(wish_of(), replace(going, pods={0: POD, 1: POD})).actions == ()
    assert kinds(plan_etcd(wish_of(), empty)) == [AddLearner]


def test_members_that_are_not_wanted_leave_from_the_top() -> None:
    """The highest ordinal is removed first, after giving up leadership: the member, then its pod, then its claim."""
    plan = plan_etcd(wish_of(), healthy(5))
    leading = replace(healthy(5), answers={n: answer_of(n, leader=4) for n in range(5)})
    gone = replace(healthy(5), members=tuple(map(member_of, range(4))))
    pods = {n: pod for n, pod in healthy(5).pods.items() if n < 4}
    podless = replace(gone, pods=pods, live=replace(set_of(gone), replicas=4))
    finished = replace(
        healthy(3),
        claims={**healthy(3).claims, 3: EtcdClaim("claim-3", "d"), 4: EtcdClaim("x", deleting=True)},
    )

    assert identities(plan) == [(RemoveMember, 4, 14)]
    assert plan.verdict.reason == "ChangingMembers"
    assert "e-4" in plan.verdict.message
    assert plan_etcd(wish_of(), leading).actions == (TransferLeadership(4, 0, 10),)
    after = plan_etcd(wish_of(), gone)
    assert after.inputs is not None
    assert after.inputs.replicas == 4
    assert identities(after) == [(RemoveMember, 3, 13)]
    assert kinds(plan_etcd(wish_of(), podless)) == [RemoveMember]
    [deleted] = plan_etcd(wish_of(), finished).actions
    assert isinstance(deleted, DeleteEtcdClaim)
    assert (deleted.ordinal, deleted.uid) == (3, "claim-3")


def test_no_member_leaves_a_majority_that_would_not_hold() -> None:
    """No member is removed from an etcd of five with three unreachable members."""
    down = without_answer(healthy(5), 1, 2, 3)

    assert plan_etcd(wish_of(), down).actions == ()


def test_a_statefulset_that_was_scaled_by_hand_is_put_right() -> None:
    """A StatefulSet that a user scaled is set back to the number of members."""
    seen = healthy()
    up = plan_etcd(wish_of(), replace(seen, live=replace(set_of(seen), replicas=7)))
    down = replace(seen, live=replace(set_of(seen), replicas=0), pods={}, members=None, answers={})
    brought_back = plan_etcd(wish_of(), down)

    assert up.inputs is not None
    assert up.inputs.replicas == 3
    assert brought_back.inputs is not None
    assert brought_back.inputs.replicas == 3


def test_a_lost_majority_is_left_alone_and_reported() -> None:
    """An etcd without a majority gets no action and keeps its pods, and the condition explains how to recover it."""
    seen = replace(
        without_answer(healthy(), 1, 2), members=None, answers={0: replace(answer_of(0), leader_id=0)}
    )
    plan = plan_etcd(
        wish_of(5), replace(seen, claims={0: EtcdClaim("claim-0", "a"), 1: EtcdClaim("another")})
    )
    joins = plan_etcd(wish_of(5), replace(joining(), members=None, answers={}))

    assert plan.actions == ()
    assert plan.inputs is not None
    assert (plan.inputs.replicas, plan.inputs.initial_cluster) == (3, NO_MEMBER_JOINS)
    assert (plan.verdict.status, plan.verdict.reason) == ("False", "QuorumLost")
    assert missing(plan.verdict.message, "e-1", "e-2") == []
    assert plan.requeue_seconds == TROUBLE_SECONDS
    assert [row.role for row in plan.status.members] == ["unknown"] * 3
    assert joins.inputs is not None
    assert joins.inputs.initial_cluster == (set_of(joining()).initial_cluster)


def test_ready_pods_that_the_operator_cannot_reach_are_no_lost_majority() -> None:
    """Ready pods that the operator cannot reach are reported as `Unreachable`, with a hint about network policies."""
    plan = plan_etcd(wish_of(), replace(healthy(), members=None, answers={}))

    assert (plan.verdict.status, plan.verdict.reason) == ("Unknown", "Unreachable")
    assert "network policies" in plan.verdict.message


def test_a_new_template_restarts_members_one_at_a_time_the_leader_last() -> None:
    """A new template restarts members one at a time, the leader last, and only while all members are healthy."""
    seen = healthy()
    old = {n: replace(pod, pod_spec_hash=OLD) for n, pod in seen.pods.items()}
    first = plan_etcd(wish_of(), replace(seen, pods=old))
    last = plan_etcd(wish_of(), replace(seen, pods={**seen.pods, 0: old[0]}))
    unready = plan_etcd(wish_of(), replace(seen, pods={**old, 1: replace(seen.pods[1], ready=False)}))
    not_yet = plan_etcd(wish_of(), replace(seen, pods=old, live=replace(set_of(seen), pod_spec_hash=OLD)))

    assert first.actions == (DeleteEtcdPod(2, "pod-2", "its template changed"),)
    assert last.actions == (DeleteEtcdPod(0, "pod-0", "its template changed"),)
    assert unready.actions == ()
    assert not_yet.actions == ()
    assert not_yet.requeue_seconds == STEP_SECONDS


def test_a_requested_restart_is_done() -> None:
    """A restart that a user requested is carried out with the given reason."""
    seen = healthy()
    plan = plan_etcd(wish_of(), replace(seen, pods={**seen.pods, 1: replace(seen.pods[1], restart="disk")}))

    assert plan.actions == (DeleteEtcdPod(1, seen.pods[1].uid, "disk"),)


def test_a_pod_that_never_became_ready_is_repaired_at_once() -> None:
    """Pods that never became ready are deleted at once if their template is old, and kept otherwise."""
    seen = replace(without_answer(healthy(), 0, 1, 2), members=None)
    bad = {n: replace(pod, pod_spec_hash=OLD) for n, pod in seen.pods.items()}
    plan = plan_etcd(wish_of(), replace(seen, pods=bad))
    bad_still = plan_etcd(wish_of(), seen)
    dying = plan_etcd(
        wish_of(), replace(seen, pods={n: replace(pod, deleting=True) for n, pod in bad.items()})
    )

    assert kinds(plan) == [DeleteEtcdPod] * 3
    assert bad_still.actions == dying.actions == ()


def test_a_pod_whose_claim_was_deleted_by_hand_stays_unless_others_carry_on() -> None:
    """A pod whose claim is being deleted is restarted only if the other members of etcd have a majority."""
    for count, restarted in ((1, []), (3, [DeleteEtcdPod])):
        seen = healthy(count)
        old = replace(seen.pods[count - 1], pod_spec_hash=OLD)
        going = {**seen.claims, count - 1: replace(seen.claims[count - 1], deleting=True)}
        plan = plan_etcd(wish_of(count), replace(seen, pods={**seen.pods, count - 1: old}, claims=going))

        assert kinds(plan) == restarted
        assert (plan.verdict.reason == "MembersUnhealthy") is (count == 1)


def test_a_volume_is_emptied_on_request() -> None:
    """The volume of a member is emptied on request if the others have a majority and its pod is not being deleted."""
    seen = healthy()
    asked = replace(seen, pods={**seen.pods, 1: replace(seen.pods[1], empty_volume=True)})
    going = replace(
        asked,
        pods={**asked.pods, 1: replace(asked.pods[1], deleting=True)},
        claims={**asked.claims, 1: replace(asked.claims[1], deleting=True)},
    )
    alone = healthy(1)

    assert kinds(plan_etcd(wish_of(), asked)) == [DeleteEtcdClaim, DeleteEtcdPod]
    assert plan_etcd(wish_of(), going).actions == ()
    assert plan_etcd(wish_of(), without_answer(asked, 2)).actions == ()
    alone = replace(alone, pods={0: replace(alone.pods[0], empty_volume=True)})
    assert plan_etcd(wish_of(1), alone).actions == ()


def test_an_alarm_and_a_member_without_a_leader_are_reported() -> None:
    """An alarm, or a member without a leader, makes etcd unhealthy, and the condition quotes etcd's message."""
    alarm = {**healthy().answers, 1: answer_of(1, errors=("NOSPACE",)), 2: replace(answer_of(2), leader_id=0)}
    plan = plan_etcd(wish_of(), replace(healthy(), answers=alarm))

    assert (plan.verdict.status, plan.verdict.reason) == ("False", "MembersUnhealthy")
    assert missing(plan.verdict.message, "e-1", "e-2", "NOSPACE") == []
    assert plan.requeue_seconds == TROUBLE_SECONDS


def test_members_of_others_are_left_alone() -> None:
    """Members that the operator did not add are kept, count towards the majority, and are named in the condition."""
    stranger, nameless = (
        EtcdMember(99, "guest", ("http://guest:2380",)),
        EtcdMember(98, "", ("http://x:2380",)),
    )
    seen = healthy()
    plan = plan_etcd(wish_of(), replace(seen, members=listed(seen, stranger)))
    told = plan_etcd(wish_of(5), joining(members=listed(joining(), stranger, nameless)))

    assert plan.actions == ()
    assert plan.verdict.reason == "Healthy"
    assert "guest" in plan.verdict.message
    assert told.inputs is not None
    assert told.inputs.initial_cluster.endswith("guest=http://guest:2380,62=http://x:2380")


def test_a_pod_beside_the_members_is_a_row_without_an_id() -> None:
    """A pod that is not yet a member has a status row without a member id."""
    seen = healthy(1)
    plan = plan_etcd(wish_of(1), replace(seen, pods={**seen.pods, 1: POD, 8: POD}))

    assert [row.name for row in plan.status.members] == ["e-0", "e-1"]
    assert plan.status.members[1].id == ""


@pytest.mark.parametrize(
    ("endpoints", "answered", "status", "reason"),
    [
        (["http://a:1", "http://b:1", "http://c:1"], ["http://a:1", "http://b:1"], "True", "External"),
        (["http://a:1", "http://b:1"], ["http://a:1"], "Unknown", "Unreachable"),
        (["https://a:1", "https://b:1"], [], "Unknown", "External"),
    ],
)
def test_an_external_etcd_is_only_asked(
    endpoints: list[str], answered: list[str], status: str, reason: str
) -> None:
    """An external etcd gets no action, is healthy if a majority of members answers, and is not called over TLS."""
    asked = [url for url in endpoints if url.startswith("http:")]
    answers = {url: answer_of(n) for n, url in enumerate(answered)}
    plan = plan_external(endpoints, answers, asked=asked)

    assert (plan.verdict.status, plan.verdict.reason) == (status, reason)
    assert plan.actions == ()
    assert plan.inputs is None
    assert plan.requeue_seconds == (EXTERNAL_SECONDS if reason == "Unreachable" else None)
    assert plan.status.ready == len(answered)


def test_the_wish_follows_the_resource() -> None:
    """The desired members have the names of their pods, and the desired fingerprint depends on the image."""
    wish = etcd_wish(cluster_of(etcd={"managed": {"replicas": 5}}), IMAGES)
    other = etcd_wish(cluster_of(etcd={"managed": {"replicas": 5}}), replace(IMAGES, etcd="other"))

    assert wish.replicas == 5
    host = "main-etcd-4.main-etcd-peers.shop.svc"
    assert wish.places[4] == EtcdPlace("main-etcd-4", f"http://{host}:2380", f"https://{host}:2480")
    assert wish.pod_spec_hash != other.pod_spec_hash


def lost() -> ObservedEtcd:
    """Return an etcd whose volumes were all replaced: its pods do not answer, and no claim has the data of a member."""
    seen = without_answer(healthy(), 0, 1, 2)
    return replace(seen, members=None, claims={n: EtcdClaim(f"new-{n}", "") for n in range(3)})


RESTORE = replace(wish_of(), restores=True)


def test_an_etcd_without_data_starts_from_the_snapshot() -> None:
    """An etcd without data is restored with a single member, whose volume is not deleted.

    During a restore, the member's pod is replaced once the StatefulSet has the snapshot.
    """
    first = plan_etcd(RESTORE, lost())
    told = EtcdSet(1, "e-0=http://e-0:2380", "new", pod_spec_hash=NEW)
    settled = plan_etcd(RESTORE, replace(lost(), live=told))
    pod = replace(POD, initial_cluster=told.initial_cluster, state="new", ready=False)
    started = plan_etcd(RESTORE, replace(lost(), live=told, pods={0: pod}))
    fresh = plan_etcd(RESTORE, ObservedEtcd())

    for plan in (first, settled, started, fresh):
        assert plan.inputs is not None
        assert (plan.inputs.replicas, plan.inputs.state, plan.inputs.restores) == (1, "new", True)
        assert plan.inputs.initial_cluster == "e-0=http://e-0:2380"
    assert identities(settled) == [(DeleteEtcdPod, 0, "pod-0")]
    assert first.actions == started.actions == fresh.actions == ()


def test_the_members_join_a_restored_etcd() -> None:
    """When a restored member answers, it is recorded, and the other members are then added as learners."""
    live = EtcdSet(1, "e-0=http://e-0:2380", "new", pod_spec_hash=NEW)
    one = replace(healthy(1), live=live, claims={n: EtcdClaim(f"new-{n}", "") for n in range(3)})
    answers = plan_etcd(RESTORE, one)
    recorded = plan_etcd(RESTORE, replace(one, claims={**one.claims, 0: EtcdClaim("new-0", "a")}))

    assert answers.inputs is not None
    assert (answers.inputs.replicas, answers.inputs.state, answers.inputs.restores) == (1, "new", False)
    assert answers.actions == (RecordMember(0, "new-0", "a"),)
    assert kinds(recorded) == [AddLearner]


def test_an_etcd_with_data_is_never_restored() -> None:
    """One volume with the data of a member, or one member that answers, prevents the restore."""
    kept = replace(lost(), claims={**lost().claims, 2: EtcdClaim("claim-2", "c")})
    for seen in (healthy(), kept, without_answer(healthy(), 0, 1)):
        plan = plan_etcd(RESTORE, seen)

        assert plan.inputs is not None
        assert not plan.inputs.restores
        assert not [each for each in plan.actions if "snapshot" in str(each)]
