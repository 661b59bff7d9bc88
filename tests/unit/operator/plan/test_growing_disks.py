"""Growing disks: larger volume claims, and the StatefulSets that are recreated for them."""

from __future__ import annotations

from fairlead_operator.plan.actions import ReplaceSet, ResizeClaim
from fairlead_operator.plan.scale import StoragePlan, WantedStorage, plan_storage
from plan_kit import claim, stateful_set
from refusals import missing


def asked(size: str, storage_class: str | None = None) -> WantedStorage:
    """Return the storage that a spec requests for three pods."""
    return WantedStorage(size, storage_class, range(3))


def test_retained_claims_of_removed_pods_keep_their_size() -> None:
    """A claim without a pod is neither enlarged nor reported as growing, and is enlarged when its pod returns."""
    wanted = {"main-a": asked("20Gi")}
    claims = [claim(0, requested="20Gi", capacity="20Gi"), claim(3), claim(4, requested="20Gi")]
    back = {"main-a": WantedStorage("20Gi", None, range(4))}

    assert plan_storage(wanted, [], claims) == StoragePlan(sizes={})
    assert plan_storage(back, [], claims).resizes == (ResizeClaim("data-main-a-3", "20Gi"),)


def test_nothing_is_done_while_sizes_agree() -> None:
    """No resize is planned while the sizes are equal, regardless of their notation."""
    planned = plan_storage({"main-a": asked("10240Mi")}, [stateful_set(1)], [claim(0)])

    assert planned == StoragePlan(sizes={})


def test_claims_grow_and_their_set_is_recreated() -> None:
    """Claims are resized, and their StatefulSet is replaced because its claim template cannot change in place."""
    planned = plan_storage({"main-a": asked("20Gi")}, [stateful_set(2)], [claim(0), claim(1)])

    assert planned.resizes == (ResizeClaim("data-main-a-0", "20Gi"), ResizeClaim("data-main-a-1", "20Gi"))
    assert planned.replaced == (ReplaceSet("main-a", "uid-a"),)


def test_a_claim_that_a_user_enlarged_is_left_alone() -> None:
    """A claim that a user enlarged beyond the spec keeps its size, and the StatefulSet follows the spec."""
    planned = plan_storage(
        {"main-a": asked("20Gi")}, [stateful_set(2)], [claim(0, requested="30Gi", capacity="30Gi")]
    )

    assert planned.resizes == ()
    assert planned.replaced == (ReplaceSet("main-a", "uid-a"),)
    assert planned.growing == ()


def test_a_claim_that_has_not_grown_yet_is_reported() -> None:
    """A claim that has less capacity than it requested is reported as growing."""
    planned = plan_storage(
        {"main-a": asked("20Gi")}, [], [claim(0, requested="20Gi"), claim(1, requested="20Gi", capacity="")]
    )

    assert planned.growing == ("data-main-a-0",)


def test_a_smaller_size_is_refused_and_the_set_keeps_the_old_one() -> None:
    """A smaller size is refused, and the StatefulSet keeps its size."""
    planned = plan_storage({"main-a": asked("5Gi")}, [stateful_set(1)], [claim(0)])

    assert planned.sizes == {"main-a": "10Gi"}
    assert [missing(each, "main-a", "10Gi", "5Gi") for each in planned.refused] == [[]]
    assert planned.resizes == ()
    assert planned.replaced == ()


def test_another_storage_class_is_refused() -> None:
    """A changed storage class is refused, because volumes cannot change their class."""
    live = stateful_set(1, storage_class="slow")
    planned = plan_storage({"main-a": asked("10Gi", "fast")}, [live], [claim(0)])

    assert [missing(each, "main-a", "slow", "fast") for each in planned.refused] == [[]]


def test_what_is_going_or_not_ours_is_left_alone() -> None:
    """Terminating claims and StatefulSets, claims of other StatefulSets, and unreadable sizes are ignored."""
    planned = plan_storage(
        {"main-a": asked("20Gi"), "main-b": asked("20Gi")},
        [stateful_set(1, terminating=True), stateful_set(1, name="main-b", storage_size="")],
        [
            claim(0, terminating=True),
            claim(1, name="data-other-a-1"),
            claim(2, name="data-main-b-2", requested="20Gi", capacity="much"),
        ],
    )

    assert planned == StoragePlan(sizes={}, growing=("data-main-b-2",))
