"""The model of quorum replication: its invariants, and its worlds with the rules that each world leaves out.

`python quorum_model.py [--seconds 900]` searches every world to the end, and prints a JSON report. The program exits
with 1 if a world with all rules has a violation, or if a world without a rule has none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Final

from exhaustive_search import Report, Step, search
from quorum_rules import Draft, is_full
from quorum_state import (
    DAMAGE,
    KILL,
    LEASE,
    MOVE,
    POWER,
    REASSIGN,
    ROLL,
    WIPE,
    State,
    World,
    place_of,
    promises_needed,
)
from quorum_steps import steps_of

HANGING: Final = "the partition hangs: no steps without faults lead to a leader with all members as voters"


@dataclass(frozen=True)
class QuorumModel:
    """The model of one world."""

    world: World

    def initial(self) -> State:
        """Return the first state."""
        return self.world.initial()

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Yield the steps from a state."""
        for label, draft in steps_of(state, self.world):
            if not draft.is_over:
                after = draft.freeze()
                yield Step(label, after, draft.violation, draft.is_fault)

    def checked(self, state: State) -> tuple[State, str | None]:
        """Return the state, and the violated invariant, if any."""
        return state, _unlike_committed(state) or _mixed_epochs(state) or self._lost_by_promises(state)

    def is_end(self, state: State) -> bool:
        """Return whether the partition has a leader that has committed everything, and all members are voters."""
        return is_full(state, self.world)

    def _lost_by_promises(self, state: State) -> str | None:
        """Return R voters whose best log lacks a committed record; any R answers must be enough for a safe election."""
        draft, record, committed = Draft(state, self.world), state.records[-1], state.committed
        able = []
        for voter in record.voters:
            broker, registered = state.brokers[voter.broker], state.registered[voter.broker]
            place = record.replicas[voter.broker]
            if (
                broker.is_up
                and draft.kept_everything(voter, record)
                and registered is not None
                and broker.epoch == registered.epoch
                and place is not None
                and broker.generation == place.generation
            ):
                able.append(voter.broker)
        for chosen in combinations(able, promises_needed(record)):
            best = max(chosen, key=lambda at: place_of(state.brokers[at].log))
            if state.brokers[best].log[: len(committed)] != committed:
                return f"the promises of {chosen} suffice, but {best} lacks {committed}"
        return None


def _unlike_committed(state: State) -> str | None:
    for at, broker in enumerate(state.brokers):
        below = broker.log[: broker.high_watermark]
        if broker.is_up and below != state.committed[: broker.high_watermark]:
            return f"readers of {at} see {below}, and {state.committed} is committed"
    return None


def _mixed_epochs(state: State) -> str | None:
    """Return two logs that have different records up to an offset with the same epoch."""
    for one, other in combinations([broker.log for broker in state.brokers], 2):
        for offset in range(min(len(one), len(other)) - 1, -1, -1):
            if one[offset].epoch == other[offset].epoch:
                if one[: offset + 1] != other[: offset + 1]:
                    return f"offset {offset} has the same epoch and other records: {one}, {other}"
                break
    return None


_TWO: Final = World(brokers=2, replicas=2)
_PAIR: Final = World(replicas=2, faults=((REASSIGN, 1),), epoch_max=2, has_late_puts=True)
_FOUR: Final = World(brokers=4, faults=((REASSIGN, 1),), epoch_max=2)
_SMALL: Final = World(has_small_fetches=True)
_MOVED: Final = World(faults=((MOVE, 1),))
_WRITE: Final = replace(_SMALL, faults=((MOVE, 1),), epoch_max=2, has_late_puts=True)


def _with(world: World, *faults: tuple[str, int], **bounds: Any) -> World:
    return replace(world, faults=faults, **bounds)


RULES: Final = {
    "1 power": _with(_SMALL, (POWER, 1)),
    "1 kill, live": _with(_SMALL, (KILL, 1), is_live=True),
    "1 wipe, live": _with(_SMALL, (WIPE, 1), is_live=True),
    "1 damage": _with(_SMALL, (DAMAGE, 1), epoch_max=2),
    "1 damage, late reports": World(faults=((DAMAGE, 1),), epoch_max=2, has_late_reports=True),
    "replicated: 1 power": World(faults=((POWER, 1),), is_synced=False),
    "replicated: 1 power, small fetches": _with(_SMALL, (POWER, 1), epoch_max=2, is_synced=False),
    "small fetches, leader moved three times": _with(_SMALL, (MOVE, 3), appends=0, epoch_max=4),
    "leader moved twice": _with(_SMALL, (MOVE, 2)),
    "late reports, leader moved": _with(_SMALL, (MOVE, 1), has_late_reports=True, epoch_max=2),
    "late reports, 1 kill": _with(
        _SMALL, (KILL, 1), has_late_reports=True, epoch_max=2, has_small_fetches=False
    ),
    "concurrent controllers, leader moved": replace(_MOVED, has_slow_controller=True),
    "undecided puts, 1 wipe": _with(_SMALL, (WIPE, 1), has_late_puts=True, epoch_max=2),
    "1 kill, 1 old copy of a disk": World(faults=((KILL, 1), (ROLL, 1)), epoch_max=2),
    "leader moved, 1 wipe": _with(_SMALL, (MOVE, 1), (WIPE, 1), epoch_max=2),
    "3/3: 1 wipe": _with(_SMALL, (WIPE, 1), write=3),
    "3/2 to 3/3: 1 move, undecided puts": replace(_WRITE, changed_write=3),
    "3/3 to 3/2: 1 move, undecided puts": replace(_WRITE, write=3, changed_write=2),
    "2/2 on 3 brokers: reassigned, 1 move": _with(_PAIR, (REASSIGN, 1), (MOVE, 1), has_small_fetches=True),
    "4 brokers: cancelled, begun again, undecided puts": _with(
        _FOUR, (REASSIGN, 2), epoch_max=1, has_late_puts=True
    ),
    "2/2: 1 power, 1 lease": _with(_TWO, (POWER, 1), (LEASE, 1), has_small_fetches=True),
    "leader moved, 1 power": _with(_SMALL, (MOVE, 1), (POWER, 1), epoch_max=2),
    "2 wipes": World(faults=((WIPE, 2),), epoch_max=2),
    "1 wipe, 1 damage, undecided puts": World(
        faults=((WIPE, 1), (DAMAGE, 1)), epoch_max=2, has_late_puts=True
    ),
    "3/2 to 3/3: 1 wipe, undecided puts": World(
        faults=((WIPE, 1),), changed_write=3, epoch_max=2, has_late_puts=True
    ),
    "2/2 on 3 brokers: reassigned, 1 wipe": _with(_PAIR, (REASSIGN, 1), (WIPE, 1)),
}
"""Worlds with all rules, by name. Three replicas, W = 2 and `durability=synced` unless the name says otherwise."""
SWITCHES: Final = {
    "own epoch": _with(_SMALL, (MOVE, 3), appends=0, epoch_max=4),
    "synced counts": World(faults=((POWER, 1),)),
    "entry life": World(faults=((ROLL, 1), (KILL, 1))),
    "generation": World(faults=((DAMAGE, 1),), has_late_reports=True, has_small_fetches=True),
    "promise": replace(_MOVED, behind_max=3),
    "raise first": _MOVED,
    "R": _MOVED,
    "best": _MOVED,
    "by end alone": World(faults=((MOVE, 2),), appends=2, epoch_max=4, behind_max=3),
    "fixed N": World(faults=((DAMAGE, 1),)),
    "directory": World(faults=((WIPE, 1), (KILL, 1))),
    "last_broker_epoch": World(faults=((ROLL, 1),)),
    "old copy": World(faults=((ROLL, 1), (KILL, 1))),
    "intact": World(faults=((POWER, 1),), is_synced=False),
    "guard": World(faults=((MOVE, 1), (LEASE, 1)), has_slow_controller=True),
    "W hold all": _FOUR,
    "epoch start for voters": _with(_SMALL, (WIPE, 1), (MOVE, 1), epoch_max=2),
    "old voters count": replace(_FOUR, has_late_puts=True),
    "new voters count": replace(_FOUR, has_late_puts=True),
    "leader finishes": _FOUR,
    "leave before dropping": World(faults=((DAMAGE, 1),)),
    "truncate by epoch": replace(_MOVED, has_small_fetches=True),
    "read-back releases": replace(_FOUR, has_late_puts=True),
    "progress without broker epoch": World(
        faults=((WIPE, 1),), has_late_reports=True, has_small_fetches=True
    ),
    "progress before reconciling": _with(_SMALL, (MOVE, 1), has_late_reports=True, epoch_max=2),
}
"""For each rule, a world in which leaving out the rule leads to a violation."""
_ALSO: Final = {"last_broker_epoch": ("old copy",)}
"""For a rule, the other rules that are left out with it, because they cannot be kept without it."""


def without(rule: str) -> World:
    """Return the world of a rule, without the rule."""
    return replace(SWITCHES[rule], without=frozenset({rule, *_ALSO.get(rule, ())}))


def explored(world: World, seconds_max: float) -> Report:
    """Search a world."""
    return search(QuorumModel(world), seconds_max, HANGING if world.is_live else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search every world and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit of a world")
    seconds = parser.parse_args(arguments).seconds
    rules = {name: explored(world, seconds) for name, world in RULES.items()}
    switches = {name: explored(without(name), seconds) for name in SWITCHES}
    report: dict[str, Any] = {
        "with_all_rules": {name: asdict(found) for name, found in rules.items()},
        "without_a_rule": {name: asdict(found) for name, found in switches.items()},
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    is_sound = all(found.is_complete and found.violation is None for found in rules.values())
    return int(not is_sound or any(found.violation is None for found in switches.values()))


if __name__ == "__main__":
    sys.exit(main())
