"""Members belong to the principal that joined (rule Z13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driven_group import Driven, wanting
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Heartbeat, Leave

ANN, BOB = "user:ann", "user:bob"


@pytest.fixture
def driven() -> Driven:
    """Return a group that does not exist yet."""
    return Driven()


def join(member_id: str, principal: str | None, instance_id: str | None = None) -> Heartbeat:
    """Return a principal's request to join."""
    subscription = replace(wanting("flights"), instance_id=instance_id)
    return Heartbeat(member_id, 0, subscription, {}, principal)


def commit_code(driven: Driven, epoch: int, principal: str | None) -> str | None:
    """Return the code with which a commit of the member is refused."""
    try:
        driven.group.check_commit("a", epoch, principal)
    except ProblemError as problem:
        return problem.code
    return None


def test_another_principal_cannot_speak_for_a_member(driven: Driven) -> None:
    """Heartbeats, rejoins, leaves and commits of another principal are refused and change nothing."""
    epoch = driven.accepted(join("a", ANN)).member_epoch
    before = driven.members["a"]
    refused = [
        driven.refused(event)
        for event in (Heartbeat("a", epoch, principal=BOB), join("a", BOB), Leave("a", principal=BOB))
    ]

    assert refused == ["forbidden"] * 3
    assert [commit_code(driven, epoch, each) for each in (BOB, ANN, None)] == ["forbidden", None, None]
    assert driven.members["a"] == before
    assert driven.accepted(Heartbeat("a", epoch, principal=ANN)).member_epoch == epoch


def test_an_instance_belongs_to_its_principal(driven: Driven) -> None:
    """Only a member of the same principal can replace a static member, even after the static member has left."""
    driven.accepted(join("a", ANN, "i"))
    driven.turn(Leave("a", static=True, principal=ANN))

    assert driven.refused(join("b", BOB, "i")) == "forbidden"
    driven.accepted(join("c", ANN, "i"))
    assert driven.members["c"].principal == ANN


def test_members_of_an_open_cluster_are_bound_when_it_closes(driven: Driven) -> None:
    """A member that joined an open cluster without a principal gets the principal of its next heartbeat.

    A later heartbeat without a principal does not change the principal of the member.
    """
    epoch = driven.accepted(join("a", None)).member_epoch
    unbound = driven.members["a"].principal
    driven.accepted(Heartbeat("a", epoch, principal=ANN))
    driven.accepted(Heartbeat("a", epoch))

    assert (unbound, driven.members["a"].principal) == (None, ANN)
    assert driven.refused(Heartbeat("a", epoch, principal=BOB)) == "forbidden"
