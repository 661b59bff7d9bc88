"""The model of transactions: its invariants, and its worlds with the rules that each world leaves out.

`python transaction_model.py [--seconds 600]` searches every world to the end, and prints a JSON report. The program
exits with 1 if a world with all rules has a violation, or if a world without a rule has none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from exhaustive_search import Report, search
from transaction_log import is_confirmed, producer_of, visible
from transaction_state import ABORT, COMMIT, DATA, Decision, Part, State, World
from transaction_steps import Steps, steps_of

HANGING: Final = "a transaction hangs: no steps without faults end the transaction in every partition"


@dataclass(frozen=True)
class TransactionModel:
    """The model of one world."""

    world: World

    def initial(self) -> State:
        """Return the first state."""
        return self.world.initial()

    def steps(self, state: State) -> Steps:
        """Yield the steps from a state."""
        return steps_of(state, self.world)

    def checked(self, state: State) -> tuple[State, str | None]:
        """Return the state, including the records that readers see, and the violated invariant, if any."""
        decided = {each[:2]: each for each in state.decided}
        if "epoch per transaction" not in self.world.without:
            for partition, part in enumerate(state.parts):
                violation = _wrong_marker(part, partition, decided)
                if violation is not None:
                    return state, violation
        seen = list(state.seen)
        for partition, part in enumerate(state.parts):
            found, before = visible(part, self.world), seen[partition]
            common = min(len(found), len(before))
            if found[:common] != before[:common]:
                return state, f"readers of {partition} saw {before}, and now {found}"
            for name, epoch, sequence, _ in found:
                decision = decided.get((name, epoch))
                if decision is None or decision.outcome != COMMIT:
                    return state, f"a reader of {partition} gets {sequence} of {epoch}, decided as {decision}"
            inputs = [(each[3], each[2]) for each in found]
            if len(set(inputs)) != len(inputs) or inputs != sorted(inputs):
                return state, f"readers of {partition} get the inputs {inputs}"
            if len(found) > len(before):
                seen[partition] = found
        return state._replace(seen=tuple(seen)), None

    def is_end(self, state: State) -> bool:
        """Return whether no transaction is open in a partition, and every commit has its markers."""
        for part in state.parts:
            names = range(len(state.records))
            is_open = any(producer_of(part.log, name, self.world.without).first is not None for name in names)
            if part.known < len(part.log) or is_open:
                return False
        return not state.writes and all(
            is_confirmed(state.parts[partition], each.name, each.epoch, self.world)
            for each in state.decided
            if each.outcome == COMMIT
            for partition in each.named
        )


def _wrong_marker(part: Part, partition: int, decided: dict[tuple[int, int], Decision]) -> str | None:
    """Return how a log breaks a rule about markers, or None."""
    marked = set()
    for entry in part.log:
        key = (entry.name, entry.epoch)
        if entry.kind == DATA:
            if key in marked:
                return f"a batch of {key} in partition {partition} follows its marker"
            continue
        decision = decided.get(key)
        if decision is None:
            return f"partition {partition} has a marker of {key}, which is not decided"
        is_committed = decision.outcome == COMMIT and partition in decision.named
        if entry.kind != (COMMIT if is_committed else ABORT) or key in marked:
            return f"partition {partition} has a second or wrong marker of {key}, decided as {decision}"
        marked.add(key)
    return None


_ONE: Final = World(has_second=False)
_ZOMBIE: Final = World(inputs=1, leader_changes=0)
_GROUP: Final = World(has_group=True, inputs=1, partitions=1)
RULES: Final = {
    "one instance": _ONE,
    "one instance, 2 unfinished commits": replace(_ONE, unfinished_max=2),
    "one instance, an abort": replace(_ONE, aborts=1),
    "one instance, 2 batches, 2 writes": replace(_ONE, batches=2, inputs=1, writes_max=2),
    "one instance, 3 inputs, 2 leader changes": replace(
        _ONE, partitions=1, inputs=3, leader_changes=2, writes_max=2
    ),
    "zombie, 2 writes": replace(_ZOMBIE, writes_max=2),
    "zombie, a leader change": replace(_ZOMBIE, leader_changes=1),
    "zombie, a leader change, 2 inputs": World(partitions=1, writes_max=2),
    "zombie, a crash, an abort": World(partitions=1, leader_changes=0, crashes=1, aborts=1),
    "zombie, both partitions": World(leader_changes=0, partitions_min=2),
    "one instance, commits with batches": replace(_ONE, partitions=1, commits_with_batches=True),
    "zombie, commits with batches": replace(_ZOMBIE, commits_with_batches=True),
    "group, a leader change": _GROUP,
    "group, 2 inputs": replace(_GROUP, inputs=2, leader_changes=0),
}
"""Worlds with all rules, by name."""
_SMALL: Final = replace(_ONE, partitions=1, leader_changes=0)
_SHORT: Final = replace(_ONE, inputs=1, leader_changes=0)
_SMALL_ZOMBIE: Final = replace(_ZOMBIE, partitions=1)
_TWO_INPUTS: Final = World(partitions=1, leader_changes=0)
SWITCHES: Final = {
    "compare": replace(_SMALL_ZOMBIE, writes_max=2),
    "definite answer": replace(_SMALL, inputs=1),
    "epoch per transaction": replace(_SMALL, has_timeout=False),
    "init bump": _ZOMBIE,
    "reason": _ZOMBIE,
    "offset after init": _TWO_INPUTS,
    "offsets apart": _TWO_INPUTS,
    "member epoch": replace(_GROUP, leader_changes=0),
    "abort by decision": _SHORT,
    "resolve before higher": _SMALL,
    "fence after marker": _SHORT,
    "lower epoch": replace(_SMALL, aborts=1),
    "sequence": replace(_SMALL, inputs=1),
    "exact marker": _SMALL,
    "confirm below hw": replace(_SMALL, leader_changes=1),
    "unfinished stay": replace(_ONE, leader_changes=0),
    "commit after acks": replace(_ONE, inputs=1),
    "all named": _SHORT,
    "commit after storing": replace(_ONE, inputs=1, commits_with_batches=True),
    "repeat as decided": replace(_ZOMBIE, partitions=1, commits_with_batches=True),
    "lso": replace(_SMALL, inputs=1),
    "aborted index": replace(_SMALL, inputs=1, aborts=1),
    "timeout": replace(_SMALL, inputs=1, crashes=1, has_timeout=False),
    "look": replace(_SHORT, crashes=1),
}
"""For each rule, a world in which leaving out the rule leads to a violation."""
_ALSO: Final = {"epoch per transaction": ("fence after marker",)}
"""For a rule, the other rules that are left out with it, because they cannot be kept without it."""


def without(rule: str) -> World:
    """Return the world of a rule, without the rule."""
    return replace(SWITCHES[rule], without=frozenset({rule, *_ALSO.get(rule, ())}))


def explored(world: World, seconds_max: float) -> Report:
    """Search a world."""
    return search(TransactionModel(world), seconds_max, HANGING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search every world and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=900.0, help="time limit of a world")
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
