"""Growing volumes of etcd: the members to restart, and the quotas of their stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from fairlead_operator.plan.etcd import plan_etcd
from fairlead_operator.plan.etcd_actions import DeleteEtcdPod, DisarmNoSpace, EtcdPlan
from fairlead_operator.plan.etcd_observed import (
    EtcdClaim,
    EtcdMember,
    EtcdPod,
    EtcdRestart,
    EtcdSet,
    EtcdStatus,
    ObservedEtcd,
)
from fairlead_operator.plan.etcd_view import EtcdPlace, EtcdWish
from fairlead_operator.render import NO_MEMBER_JOINS
from refusals import missing

NEW: Final = "new"
MIB: Final = 1 << 20
SMALL, LARGE = 8 * MIB, 32 * MIB
FULL: Final = ("memberID:10 alarm:NOSPACE ",)
WISH: Final = EtcdWish(3, NEW, tuple(EtcdPlace(f"e-{n}", f"http://e-{n}:2380") for n in range(5)))


def an_etcd(
    *, quotas: tuple[int, int, int] = (SMALL, SMALL, SMALL), told: int = LARGE, errors: tuple[str, ...] = ()
) -> ObservedEtcd:
    """Return an etcd of three members with the given store quotas, and the quota of larger volumes in its template."""
    return ObservedEtcd(
        live=EtcdSet(3, NO_MEMBER_JOINS, "existing", pod_spec_hash=NEW, quota_bytes=told),
        pods={
            n: EtcdPod(
                f"pod-{n}",
                ready=True,
                initial_cluster=NO_MEMBER_JOINS,
                state="existing",
                pod_spec_hash=NEW,
                created="2026-01-01T10:00:00Z",
                quota_bytes=quota,
            )
            for n, quota in enumerate(quotas)
        },
        claims={n: EtcdClaim(f"claim-{n}", f"{10 + n:x}", size_bytes=8000) for n in range(3)},
        members=tuple(EtcdMember(10 + n, f"e-{n}", (f"http://e-{n}:2380",)) for n in range(3)),
        answers={n: EtcdStatus(10 + n, 10, errors=errors, store_bytes=7 * MIB) for n in range(3)},
    )


def at(ordinal: int, since: str = "2026-01-01T10:00:05Z", *, overdue: bool = False) -> EtcdRestart:
    """Return the planned restart that the status records."""
    return EtcdRestart(ordinal, "its volume has grown", since, overdue)


def without(seen: ObservedEtcd, ordinal: int, restart: EtcdRestart | None) -> ObservedEtcd:
    """Return a copy in which the pod of a member is missing."""
    answers = {n: answer for n, answer in seen.answers.items() if n != ordinal}
    pods = {n: pod for n, pod in seen.pods.items() if n != ordinal}
    return replace(seen, answers=answers, pods=pods, restart=restart)


def restarted(plan: EtcdPlan) -> list[int]:
    """Return the ordinals of deleted pods."""
    return [action.ordinal for action in plan.actions if isinstance(action, DeleteEtcdPod)]


@pytest.mark.parametrize("errors", [(), FULL])
def test_members_learn_of_larger_volumes_one_after_the_other(errors: tuple[str, ...]) -> None:
    """Members are restarted one after the other for larger volumes, the leader last, even while the store is full."""
    first = plan_etcd(WISH, an_etcd(errors=errors))
    last = plan_etcd(WISH, an_etcd(quotas=(SMALL, LARGE, LARGE), errors=errors))
    done = plan_etcd(WISH, an_etcd(quotas=(LARGE, LARGE, LARGE), errors=errors))

    assert restarted(first) == [2]
    assert restarted(last) == [0]
    assert done.actions == ((DisarmNoSpace(0),) if errors else ())
    assert [(each.ordinal, each.uid) for each in first.actions] == [(2, "pod-2")]


@pytest.mark.parametrize("errors", [("memberID:10 alarm:CORRUPT ",), (*FULL, "memberID:11 alarm:CORRUPT ")])
def test_no_member_is_restarted_beside_a_damaged_one(errors: tuple[str, ...]) -> None:
    """No member is restarted while another member has corrupt data."""
    assert restarted(plan_etcd(WISH, an_etcd(errors=errors))) == []


def test_a_full_store_without_room_stays_full() -> None:
    """The alarm of a full store stays while one member has no free space."""
    seen = an_etcd(quotas=(LARGE, LARGE, LARGE), errors=FULL)
    filled = replace(seen, answers={**seen.answers, 1: replace(seen.answers[1], store_bytes=28 * MIB)})
    untold = an_etcd(quotas=(LARGE, LARGE, 0), errors=FULL)

    assert plan_etcd(WISH, filled).actions == plan_etcd(WISH, untold).actions == ()


def test_a_full_store_is_no_time_for_other_restarts() -> None:
    """A requested restart or a missing member waits while the store is full."""
    seen = an_etcd(quotas=(LARGE, LARGE, LARGE), errors=FULL)
    asked = replace(seen, pods={**seen.pods, 1: replace(seen.pods[1], restart="please")})
    gone = replace(seen, pods={n: pod for n, pod in seen.pods.items() if n != 1})

    assert restarted(plan_etcd(WISH, asked)) == []
    assert plan_etcd(WISH, gone).actions == ()


def test_a_member_that_does_not_answer_stops_it() -> None:
    """No member is restarted while another member does not answer or has no leader."""
    seen = an_etcd()
    silent = replace(seen, answers={n: answer for n, answer in seen.answers.items() if n != 1})
    leaderless = replace(seen, answers={**seen.answers, 1: replace(seen.answers[1], leader_id=0)})

    assert restarted(plan_etcd(WISH, silent)) == []
    assert restarted(plan_etcd(WISH, leaderless)) == []


def test_a_store_never_shrinks_and_an_unknown_one_is_left_alone() -> None:
    """No member is restarted for a smaller quota, an unknown quota or a template that has not been observed yet."""
    unseen = an_etcd()
    assert unseen.live is not None
    unseen = replace(unseen, live=replace(unseen.live, settled=False))

    for seen in (an_etcd(quotas=(LARGE, LARGE, LARGE), told=SMALL), an_etcd(quotas=(0, 0, 0)), unseen):
        assert restarted(plan_etcd(WISH, seen)) == []


def test_a_volume_that_has_not_grown_yet_is_waited_for() -> None:
    """A member whose volume is still growing is not restarted."""
    seen = an_etcd()
    growing = {n: replace(claim, growing=n == 2) for n, claim in seen.claims.items()}

    assert restarted(plan_etcd(WISH, replace(seen, claims=growing))) == [1]


def test_a_file_system_grows_when_its_pod_starts() -> None:
    """A pod is restarted once for a file system that grows only when its pod starts."""
    seen = an_etcd(quotas=(LARGE, LARGE, LARGE))
    waits = replace(seen.claims[1], waits_for_restart_since="2026-01-01T11:00:00Z")
    waiting = replace(seen, claims={**seen.claims, 1: waits})
    since = replace(waiting.pods[1], created="2026-01-01T11:00:01Z")

    assert restarted(plan_etcd(WISH, waiting)) == [1]
    assert restarted(plan_etcd(WISH, replace(waiting, pods={**waiting.pods, 1: since}))) == []


def test_the_store_is_as_large_as_the_smallest_volume_allows() -> None:
    """The store quota follows the smallest volume claim, without claims that are being deleted or have no size."""
    seen = an_etcd()
    claims = {
        **seen.claims,
        1: EtcdClaim("claim-1", "b", size_bytes=2000),
        2: EtcdClaim("claim-2", "c"),
        3: EtcdClaim("claim-3", "d", deleting=True, size_bytes=1),
    }
    refused, first = plan_etcd(WISH, replace(seen, claims=claims)), plan_etcd(WISH, ObservedEtcd())

    assert refused.inputs is not None
    assert first.inputs is not None
    assert refused.inputs.volume_bytes == 2000
    assert first.inputs.volume_bytes is None


def test_larger_volumes_are_a_change_until_the_last_member_is_back() -> None:
    """A growing volume is reported as a change from its request until the last member is ready again."""
    wish = replace(WISH, volume_bytes=8000)
    grown = an_etcd(quotas=(1000, 1000, 1000), told=1000)
    done = an_etcd(quotas=(3200, 3200, 3200), told=3200)
    unready = {**done.pods, 0: replace(done.pods[0], ready=False)}
    steps = [
        grown,
        an_etcd(quotas=(1000, 1000, 1000), told=3200),
        without(an_etcd(quotas=(1000, 1000, 3200), told=3200), 2, at(2)),
        an_etcd(quotas=(1000, 1000, 3200), told=3200),
        without(done, 0, at(0)),
        replace(done, pods=unready, restart=at(0)),
    ]
    plans = [plan_etcd(wish, seen) for seen in steps]

    assert [bool(plan.changes) for plan in plans] == [True] * len(steps)
    assert {plan.verdict.status for plan in plans} == {"True"}
    assert plan_etcd(wish, replace(done, restart=at(0))).changes == ""
    assert plan_etcd(wish, replace(done, restart=at(0))).restart is None
    assert plans[-1].restart == at(0)


def test_a_planned_restart_of_one_of_three_is_healthy() -> None:
    """An etcd of three counts as healthy until a planned restart is overdue, if no other member is unhealthy."""
    seen, second = an_etcd(), an_etcd()
    second = replace(second, answers={0: second.answers[0]})
    planned = plan_etcd(WISH, without(seen, 2, at(2))).verdict

    assert (planned.status, planned.reason) == ("True", "RestartingMember")
    for trouble in (
        without(seen, 2, at(2, overdue=True)),
        without(seen, 2, at(1)),
        without(seen, 2, None),
        without(second, 2, at(2)),
    ):
        verdict = plan_etcd(WISH, trouble).verdict
        assert (verdict.status, verdict.reason) == ("False", "MembersUnhealthy")


def test_a_planned_restart_of_the_only_member_is_not_taken_for_a_loss() -> None:
    """A planned restart of the only member is not reported as a lost majority."""
    three = an_etcd()
    assert three.live is not None
    seen = ObservedEtcd(
        live=replace(three.live, replicas=1),
        claims={0: three.claims[0]},
        restart=at(0),
    )
    plan = plan_etcd(replace(WISH, replicas=1), seen)
    late = plan_etcd(replace(WISH, replicas=1), replace(seen, restart=at(0, overdue=True)))

    assert (plan.verdict.status, plan.verdict.reason) == ("False", "RestartingMember")
    assert plan.changes
    assert late.verdict.reason == "QuorumLost"


def test_a_member_that_was_removed_is_not_waited_for() -> None:
    """A recorded restart of a removed member is dropped."""
    seen = an_etcd(quotas=(LARGE, LARGE, LARGE))
    pods = {**seen.pods, 3: replace(seen.pods[0], uid="pod-3")}

    assert plan_etcd(WISH, replace(seen, pods=pods, restart=at(3))).restart is None


def test_every_restart_that_is_due_is_a_change() -> None:
    """A due restart is reported as a change, regardless of its reason, unless the pod is already being deleted."""
    seen = an_etcd(quotas=(LARGE, LARGE, LARGE))
    waits = replace(seen.claims[1], waits_for_restart_since="2026-01-01T11:00:00Z")
    old = {**seen.pods, 1: replace(seen.pods[1], pod_spec_hash="old")}
    asked = {**seen.pods, 1: replace(seen.pods[1], restart="please")}
    going = {**seen.pods, 1: replace(seen.pods[1], restart="please", deleting=True)}

    assert missing(plan_etcd(WISH, replace(seen, pods=old)).changes, "e-1") == []
    assert missing(plan_etcd(WISH, replace(seen, pods=asked)).changes, "e-1", "please") == []
    assert plan_etcd(WISH, replace(seen, claims={**seen.claims, 1: waits})).changes
    assert plan_etcd(WISH, replace(seen, pods=going)).changes == ""


def test_a_refused_pod_is_named_in_the_condition() -> None:
    """The condition of an unhealthy etcd quotes the API server's refusal of a pod."""
    refused = 'pods "e-0" is forbidden: exceeded quota'

    assert refused in plan_etcd(WISH, ObservedEtcd(refused=refused)).verdict.message
