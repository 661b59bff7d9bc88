"""Safety of the etcd plan: the actions that it never orders, for arbitrary and contradictory observations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.plan.etcd import plan_etcd
from fairlead_operator.plan.etcd_actions import (
    AddLearner,
    DeleteEtcdClaim,
    DeleteEtcdPod,
    PromoteLearner,
    RemoveMember,
    TransferLeadership,
)
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

PLACES = tuple(EtcdPlace(f"e-{n}", f"http://e-{n}:2380") for n in range(5))
ORDINALS = st.integers(0, 4)
IDS = st.integers(10, 15)
HASHES = st.sampled_from(["old", "new"])
TOLD = st.sampled_from([NO_MEMBER_JOINS, "e-0=http://e-0:2380"])
STATES = st.sampled_from(["new", "existing"])
WORDS = st.sampled_from(["", "why"])

SETS = st.builds(EtcdSet, st.integers(0, 6), TOLD, STATES, st.booleans(), HASHES)
PODS = st.builds(
    EtcdPod, st.just("pod"), st.booleans(), st.booleans(), TOLD, STATES, HASHES, WORDS, st.booleans()
)
CLAIMS = st.builds(EtcdClaim, st.just("claim"), st.sampled_from(["", "a", "b", "c", "d"]), st.booleans())
ANSWERS = st.builds(
    EtcdStatus,
    IDS,
    st.sampled_from([0, 10, 11]),
    st.booleans(),
    st.just(""),
    st.sampled_from([(), ("ALARM",)]),
)


@st.composite
def member_lists(draw: st.DrawFn) -> tuple[EtcdMember, ...]:
    """Draw a member list with distinct ordinals and at most one learner, as etcd allows."""
    ordinals = draw(st.sets(ORDINALS, min_size=1))
    learner = draw(st.one_of(st.none(), ORDINALS))
    return tuple(
        EtcdMember(
            10 + ordinal,
            draw(st.sampled_from(["", f"e-{ordinal}"])),
            (PLACES[ordinal].peer_url,),
            ordinal == learner,
        )
        for ordinal in sorted(ordinals)
    )


def seen() -> st.SearchStrategy[ObservedEtcd]:
    """Return a strategy for arbitrary observations of an etcd."""
    return st.builds(
        ObservedEtcd,
        st.one_of(st.none(), SETS),
        st.dictionaries(ORDINALS, PODS, max_size=5),
        st.dictionaries(ORDINALS, CLAIMS, max_size=5),
        st.one_of(st.none(), member_lists()),
        st.dictionaries(ORDINALS, ANSWERS, max_size=5),
    )


def is_healthy(observed: ObservedEtcd, member: EtcdMember) -> bool:
    """Return whether a member answered with its own id, has a leader, and has no alarms."""
    return any(
        answer.member_id == member.member_id and answer.healthy for answer in observed.answers.values()
    )


@given(st.sampled_from([1, 3, 5]), seen())
def test_a_plan_risks_nothing(replicas: int, observed: ObservedEtcd) -> None:
    """A plan changes at most one member, changes none without a majority, and keeps the claims of voters."""
    plan = plan_etcd(EtcdWish(replicas, "new", PLACES), observed)
    changes = [
        each
        for each in plan.actions
        if isinstance(each, AddLearner | PromoteLearner | RemoveMember | TransferLeadership)
    ]
    members = observed.members or ()
    by_id = {member.member_id: member for member in members}

    assert len(changes) <= 1
    assert plan.inputs is not None
    if observed.members is None:
        assert all(isinstance(each, DeleteEtcdPod) for each in plan.actions)
        recorded = [ordinal for ordinal, claim in observed.claims.items() if claim.member_id]
        assert plan.inputs.state == "new" or plan.inputs.replicas > max(recorded, default=-1)
    for change in changes:
        if (
            isinstance(change, RemoveMember)
            and not by_id[change.member_id].learner
            and by_id[change.member_id].name
        ):
            rest = [each for each in members if not each.learner and each.member_id != change.member_id]
            assert sum(is_healthy(observed, each) for each in rest) > len(rest) // 2
    for action in plan.actions:
        if isinstance(action, DeleteEtcdClaim) and not any(
            pod.empty_volume for pod in observed.pods.values()
        ):
            claim = observed.claims[action.ordinal]
            assert claim.member_id not in {member.hex_id for member in members if not member.learner}


@given(st.sampled_from([1, 3, 5]), seen())
def test_no_member_loses_a_deleted_claim_with_its_pod(replicas: int, observed: ObservedEtcd) -> None:
    """A member whose claim is being deleted keeps its pod unless it is new or the others are a healthy majority."""
    plan = plan_etcd(EtcdWish(replicas, "new", PLACES), observed)
    members = observed.members or ()
    at_stake = {
        int(member.peer_urls[0].removesuffix(":2380")[-1]): member
        for member in members
        if not member.learner and member.name
    }

    for action in plan.actions:
        claim = observed.claims.get(action.ordinal)
        if isinstance(action, DeleteEtcdPod) and claim is not None and claim.deleting:
            assert observed.members is not None
            if action.ordinal in at_stake:
                rest = [each for each in members if not each.learner and each != at_stake[action.ordinal]]
                assert sum(is_healthy(observed, each) for each in rest) > len(rest) // 2


@given(st.sampled_from([1, 3, 5]), seen())
def test_the_members_that_there_are_keep_their_pods(replicas: int, observed: ObservedEtcd) -> None:
    """A member keeps its pod while etcd lists the member, and a formed etcd is never started as a new cluster."""
    plan = plan_etcd(EtcdWish(replicas, "new", PLACES), observed)
    places = {place.peer_url: ordinal for ordinal, place in enumerate(PLACES)}

    assert plan.inputs is not None
    if observed.live is not None and observed.live.state == "existing":
        assert plan.inputs.state == "existing"
        for member in observed.members or ():
            assert plan.inputs.replicas > places[member.peer_urls[0]]
