"""Which disks grow, and which StatefulSets are made anew because their claim templates cannot be changed in place.

A claim is asked for the larger of what the spec says and what it has: one that somebody enlarged by hand stays as it
is. Must not know whether the storage class can do it: Kubernetes refuses what cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from fairlead_api.resources.quantities import quantity
from fairlead_operator.plan.actions import ReplaceSet, ResizeClaim
from fairlead_operator.plan.observed import ObservedClaim, ObservedSet


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """What to ask for, and what to draw."""

    resizes: tuple[ResizeClaim, ...] = ()
    replaced: tuple[ReplaceSet, ...] = ()
    sizes: Mapping[str, str]
    """By StatefulSet, the size that its claim template shall have, where that is not the spec's."""
    growing: tuple[str, ...] = ()
    """Claims that have been asked for more and do not have it yet."""
    refused: tuple[str, ...] = ()
    """Why a size or class of the spec is not taken, for people."""


def plan_storage(
    wanted: Mapping[str, tuple[str, str | None]],
    sets: Iterable[ObservedSet],
    claims: Iterable[ObservedClaim],
) -> StoragePlan:
    """Return the next step. `wanted` is the size and class of the spec, by the name of the StatefulSet."""
    resizes, growing = list[ResizeClaim](), list[str]()
    replaced, refused, sizes = list[ReplaceSet](), list[str](), dict[str, str]()
    by_set = {each.name: each for each in sets}
    for claim in claims:
        size = wanted.get(_set_of(claim), ("", None))[0]
        if not size or claim.terminating:
            continue
        if _is_larger(size, claim.requested):
            resizes.append(ResizeClaim(claim.name, size))
        elif claim.capacity and _is_larger(claim.requested, claim.capacity):
            growing.append(claim.name)
    for name, (size, storage_class) in wanted.items():
        live = by_set.get(name)
        if live is None or live.terminating or not live.storage_size:
            continue
        if _is_larger(live.storage_size, size):
            refused.append(f"{name} keeps {live.storage_size}: a volume cannot shrink to {size}")
            sizes[name] = live.storage_size
        elif _is_larger(size, live.storage_size):
            replaced.append(ReplaceSet(live.name, live.uid))
        if storage_class is not None and live.storage_class not in (None, storage_class):
            refused.append(
                f"{name} keeps storage class {live.storage_class}: make another pool for {storage_class}"
            )
    return StoragePlan(
        resizes=tuple(resizes),
        replaced=tuple(replaced),
        sizes=sizes,
        growing=tuple(growing),
        refused=tuple(refused),
    )


def _set_of(claim: ObservedClaim) -> str:
    """Return the StatefulSet of a claim: `data-main-a-0` is of `main-a`."""
    return claim.name.partition("-")[2].rpartition("-")[0]


def _is_larger(one: str, other: str) -> bool:
    return size_of(one) > size_of(other)


def size_of(text: str) -> Fraction:
    """Read a quantity; what cannot be read is nothing, so that no claim is touched for it."""
    try:
        return quantity(text)
    except ValueError:
        return Fraction(0)
