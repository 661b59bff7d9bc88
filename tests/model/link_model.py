"""The model of a topic that exists in two clusters: copying, eras, hand-overs, failovers and failbacks.

Each cluster is one partition with one log, because replication inside a cluster has separate models. The decisions are
those of the shipped package `links`; the model adds a network that delays answers, elections, losses of records, and a
controller that forgets what it knows between any two steps. `World.without` names the rules that a world leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from exhaustive_search import Report, Step, search
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_broker.links.copying import (
    Append,
    Arrived,
    Cut,
    MirrorLog,
    OnExpiry,
    OnTruncation,
    RaiseEpoch,
    SourceAnswer,
    Truncated,
    next_step,
)
from fairlead_broker.links.eras import Kinship, first_of_next_era, kinship
from fairlead_broker.links.switching import CopiedTo, Known, SwitchStep, next_switch_step
from fairlead_broker.registry.records import MirrorState
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, divergence

FIRST: Final = PartitionIndex(0)


class Entry(NamedTuple):
    """A record in a log."""

    epoch: int
    number: int
    """Number that no other record of the world has."""


class Era(NamedTuple):
    """An era in the topic record of a cluster."""

    epoch: int
    cluster: str


class Answer(NamedTuple):
    """An answer from the source on its way to the mirror."""

    content: SourceAnswer
    entries: tuple[Entry, ...]
    end: int
    """End of the mirror's log when the mirror sent its request."""
    leader_epoch: int


class Cluster(NamedTuple):
    """The topic in one cluster."""

    log: tuple[Entry, ...] = ()
    epoch: int = 1
    eras: tuple[Era, ...] = ()
    era: int | None = None
    """Era that the current promotion begins."""
    mirror: MirrorState | None = None
    is_handed_over: bool = False
    answer: Answer | None = None
    tail: frozenset[int] = frozenset()
    """Records that were cut and kept in a file."""
    committed: int = 0
    """Offset that the group of the cluster has committed."""

    @property
    def is_mirroring(self) -> bool:
        """Whether the cluster copies the topic from the other cluster."""
        return self.mirror in (MirrorState.MIRRORING, MirrorState.HANDING_OVER)


class State(NamedTuple):
    """State of the world."""

    clusters: tuple[Cluster, Cluster]
    acknowledged: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    """Records that an unclean election lost."""
    ends: CopiedTo | None = None
    """End of the source's log, as far as the mirror's controller knows."""
    groups_copied: bool = False
    is_planned: bool = False
    """Whether the current promotion is a hand-over."""
    is_taken_back: bool = False
    """Whether an operator has begun to reopen the source."""
    produces: int = 0
    elections: int = 0
    losses: int = 0
    switches: int = 0
    adoptions: int = 0


@dataclass(frozen=True)
class World:
    """Bounds of a world, and the rules that it leaves out."""

    produces: int = 2
    elections: int = 1
    losses: int = 0
    switches: int = 1
    adoptions: int = 0
    without: frozenset[str] = frozenset()

    def initial(self) -> State:
        """Return the first state: cluster 1 mirrors cluster 0."""
        first, second = Cluster(), Cluster(mirror=MirrorState.MIRRORING)
        return State(
            (first, second),
            produces=self.produces,
            elections=self.elections,
            losses=self.losses,
            switches=self.switches,
            adoptions=self.adoptions,
        )


@dataclass(frozen=True)
class LinkModel:
    """The model of one world."""

    world: World

    def initial(self) -> State:
        """Return the first state."""
        return self.world.initial()

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Yield the steps from a state."""
        for at in (0, 1):
            yield from self._writing(state, at)
            yield from self._copying(state, at)
            if state.clusters[at].mirror is not None:
                yield from self._switching(state, at)
            yield from self._adopting(state, at)

    def checked(self, state: State) -> tuple[State, str | None]:
        """Return the state, and the violated invariant, if any."""
        return state, _mixed_epochs(state) or _twice(state) or _ahead(state) or _vanished(state) or _below(
            state
        )

    def is_end(self, state: State) -> bool:
        """Return whether a cluster accepts records."""
        return any(_accepts(each) for each in state.clusters)

    def _keeps(self, rule: str) -> bool:
        return rule not in self.world.without

    # -- producers and elections

    def _writing(self, state: State, at: int) -> Iterator[Step[State]]:
        own = state.clusters[at]
        if state.produces and (_accepts(own) or (own.mirror is None and not self._keeps("refuse"))):
            number = self.world.produces - state.produces
            after = state._replace(produces=state.produces - 1, acknowledged=state.acknowledged | {number})
            log = (*own.log, Entry(own.epoch, number))
            violation = "two clusters acknowledge records" if own.is_handed_over else None
            yield Step(f"{at} produces {number}", _with(after, at, log=log), violation, is_fault=True)
        if own.mirror is None and own.committed < len(own.log):
            yield Step(f"{at} commits", _with(state, at, committed=len(own.log)), is_fault=True)
        if state.elections:
            after = state._replace(elections=state.elections - 1)
            yield Step(f"{at} elects", _with(after, at, epoch=own.epoch + 1), is_fault=True)
        if state.losses and own.log and own.mirror is None:
            after = state._replace(losses=state.losses - 1, lost=state.lost | {own.log[-1].number})
            committed = min(own.committed, len(own.log) - 1)
            lossy = _with(after, at, epoch=own.epoch + 1, log=own.log[:-1], committed=committed)
            yield Step(f"{at} loses a record", lossy, is_fault=True)

    # -- copying

    def _copying(self, state: State, at: int) -> Iterator[Step[State]]:
        own, source = state.clusters[at], state.clusters[1 - at]
        if own.answer is not None:
            after = self._received(state, at, own.answer)
            is_changed = own.mirror is None and after.clusters[at].log != own.log
            violation = "an answer changes a topic that accepts records" if is_changed else None
            yield Step(f"{at} receives", after, violation)
        elif own.is_mirroring:
            answer = self._answered(own, source)
            if answer is not None:
                yield Step(f"{at} fetches", _with(state, at, answer=answer))
            if source.committed > own.committed:
                yield Step(f"{at} copies offsets", self._with_offsets(state, at))

    def _answered(self, own: Cluster, source: Cluster) -> Answer | None:
        """Return the source's answer, as a leader answers a fetch with the epoch of the last record."""
        end = len(own.log)
        if own.log:
            last_epoch = LeaderEpoch(own.log[-1].epoch)
            if last_epoch > source.epoch:
                return None
            parted = self._divergence(source.log, last_epoch, end)
            if parted is not None:
                return Answer(Truncated(parted), (), end, own.epoch)
        if end >= len(source.log):
            return None
        entries = source.log[end : end + 1]
        arrived = Arrived(Offset(end), LeaderEpoch(entries[-1].epoch), Offset(0))
        return Answer(arrived, entries, end, own.epoch)

    def _divergence(self, log: tuple[Entry, ...], last_epoch: LeaderEpoch, end: int) -> EpochEnd | None:
        if not self._keeps("epochs in the fetch"):
            return None
        found = divergence(_starts(log), Offset(len(log)), last_epoch, Offset(end))
        if found is not None and not self._keeps("epoch before end") and found.end_offset >= end:
            return None
        return found

    def _received(self, state: State, at: int, answer: Answer) -> State:
        own = state.clusters[at]
        state = _with(state, at, answer=None)
        is_late = not own.is_mirroring or own.epoch != answer.leader_epoch or len(own.log) != answer.end
        if is_late and self._keeps("late answers"):
            return state
        log = MirrorLog(Offset(0), Offset(len(own.log)), LeaderEpoch(own.epoch), _starts(own.log))
        match next_step(log, answer.content, OnTruncation.FOLLOW, OnExpiry.SKIP):
            case RaiseEpoch(epoch) if self._keeps("raise first"):
                return _with(state, at, epoch=epoch)
            case Append() | RaiseEpoch():
                return _with(state, at, log=own.log + answer.entries)
            case Cut(offset):
                dropped = frozenset(each.number for each in own.log[offset:])
                tail = own.tail | dropped if self._keeps("tail") else own.tail
                committed = min(own.committed, offset)
                return _with(
                    state, at, log=own.log[:offset], epoch=own.epoch + 1, tail=tail, committed=committed
                )
            case other:
                raise AssertionError(other)

    def _with_offsets(self, state: State, at: int) -> State:
        own, source = state.clusters[at], state.clusters[1 - at]
        offset = min(source.committed, len(own.log)) if self._keeps("clamp") else source.committed
        return _with(state, at, committed=max(own.committed, offset))

    # -- promotions

    def _switching(self, state: State, at: int) -> Iterator[Step[State]]:
        own = state.clusters[at]
        if state.switches and own.mirror is MirrorState.MIRRORING and not state.is_taken_back:
            after = state._replace(switches=state.switches - 1, is_planned=True)
            yield Step(
                f"{at} is to take over", _with(after, at, mirror=MirrorState.HANDING_OVER), is_fault=True
            )
        if state.switches and own.is_mirroring:
            after = _forgotten(state)._replace(switches=state.switches - 1, is_planned=False)
            yield Step(f"{at} fails over", _with(after, at, mirror=MirrorState.PROMOTING), is_fault=True)
        if own.mirror is MirrorState.HANDING_OVER:
            # The mirror abandons the promotion before the source is reopened.
            after = _forgotten(state) if self._keeps("ends once") else state
            after = after._replace(is_taken_back=True)
            yield Step(f"{at} gives up", _with(after, at, mirror=MirrorState.MIRRORING), is_fault=True)
        if state.is_taken_back and own.mirror is MirrorState.MIRRORING:
            after = state._replace(is_taken_back=False)
            yield Step(f"{1 - at} is taken back", _with(after, 1 - at, is_handed_over=False))
        if state.ends is not None or state.groups_copied:
            yield Step(f"{at} forgets", _forgotten(state), is_fault=True)
        ends, reached = state.ends, _end(own)
        if ends is not None and (
            not self._keeps("wait")
            or (not self._keeps("epoch at the end") and reached.end_offset == ends.end_offset)
        ):
            reached = ends
        known = Known(
            None if ends is None else {FIRST: ends},
            {FIRST: reached},
            state.groups_copied,
            None if own.era is None else LeaderEpoch(own.era),
            int(own.epoch < (own.era or 0)),
        )
        assert own.mirror is not None
        step = next_switch_step(own.mirror, known)
        if step is not None and step is not SwitchStep.WAIT:
            yield self._switched(state, at, step)

    def _switched(self, state: State, at: int, step: SwitchStep) -> Step[State]:
        own, label = state.clusters[at], f"{at}: {step.name.lower()}"
        match step:
            case SwitchStep.HAND_OVER:
                fences = self._keeps("fence first")
                after = _with(state, 1 - at, is_handed_over=True) if fences else state
                return Step(label, after._replace(ends=_end(state.clusters[1 - at])))
            case SwitchStep.COPY_GROUPS:
                return Step(label, self._with_offsets(state, at)._replace(groups_copied=True))
            case SwitchStep.BEGIN_PROMOTION:
                after = _with(_forgotten(state), at, mirror=MirrorState.PROMOTING)
                return Step(label, after)
            case SwitchStep.CHOOSE_ERA:
                eras = [each.epoch for each in own.eras] if self._keeps("known eras") else []
                era = first_of_next_era(*map(LeaderEpoch, (own.epoch, *eras)))
                assert era is not None
                if not self._keeps("era"):
                    era = LeaderEpoch(own.epoch + 1)
                return Step(label, _with(state, at, era=era))
            case SwitchStep.BEGIN_ERAS:
                return Step(label, _with(state, at, epoch=own.era))
            case SwitchStep.FINISH:
                assert own.era is not None
                eras_now = (*own.eras, Era(own.era, str(at)))
                after = _with(state, at, mirror=None, era=None, eras=eras_now, is_handed_over=False)
                return Step(label, after, _lost_by_hand_over(after, at) if state.is_planned else None)
            case SwitchStep.WAIT:
                raise AssertionError

    # -- failback

    def _adopting(self, state: State, at: int) -> Iterator[Step[State]]:
        own, other = state.clusters[at], state.clusters[1 - at]
        if not state.adoptions or own.mirror is not None or other.mirror is not None:
            return
        relation = kinship(own.eras, other.eras)
        if relation is Kinship.SAME_OR_OLDER and own.eras != other.eras:
            after = state._replace(adoptions=state.adoptions - 1, is_planned=False)
            after = _with(after, at, mirror=MirrorState.MIRRORING, is_handed_over=False, eras=other.eras)
            yield Step(f"{at} follows {1 - at}", after, is_fault=True)


def _accepts(cluster: Cluster) -> bool:
    return cluster.mirror is None and not cluster.is_handed_over


def _with(state: State, at: int, **fields: object) -> State:
    clusters = list(state.clusters)
    clusters[at] = clusters[at]._replace(**fields)  # type: ignore[arg-type]
    return state._replace(clusters=(clusters[0], clusters[1]))


def _end(cluster: Cluster) -> CopiedTo:
    last = cluster.log[-1].epoch if cluster.log else None
    return CopiedTo(Offset(len(cluster.log)), None if last is None else LeaderEpoch(last))


def _forgotten(state: State) -> State:
    """Return the state after the controller of the mirror has lost everything that is not stored."""
    return state._replace(ends=None, groups_copied=False)


def _starts(log: tuple[Entry, ...]) -> list[EpochStart]:
    starts: list[EpochStart] = []
    for offset, entry in enumerate(log):
        if not starts or starts[-1].epoch < entry.epoch:
            starts.append(EpochStart(LeaderEpoch(entry.epoch), Offset(offset)))
    return starts


# -- invariants


def _mixed_epochs(state: State) -> str | None:
    """ErasTell: up to the last offset at which two logs have the same epoch, their records are the same."""
    one, other = (each.log for each in state.clusters)
    for offset in range(min(len(one), len(other)) - 1, -1, -1):
        if one[offset].epoch == other[offset].epoch:
            if one[: offset + 1] != other[: offset + 1]:
                return f"offset {offset} has the same epoch and other records: {one}, {other}"
            return None
    return None


def _twice(state: State) -> str | None:
    """NoCycle: no log has a record twice."""
    for each in state.clusters:
        numbers = [entry.number for entry in each.log]
        if len(numbers) != len(set(numbers)):
            return f"a record is in a log twice: {each.log}"
    return None


def _ahead(state: State) -> str | None:
    """NeverAhead: no committed offset of a mirror is above the end of its log."""
    for each in state.clusters:
        if each.committed > len(each.log):
            return f"offset {each.committed} is committed, and the log ends at {len(each.log)}"
    return None


def _vanished(state: State) -> str | None:
    """AccountedGaps: each acknowledged record is in a log, was lost by the source, or is in the file of a cut."""
    kept = set(state.lost)
    for each in state.clusters:
        kept.update(entry.number for entry in each.log)
        kept.update(each.tail)
    gone = state.acknowledged - kept
    return f"acknowledged records are nowhere: {sorted(gone)}" if gone else None


def _below(state: State) -> str | None:
    """EpochsRise: epochs of a log never fall, and none is above the epoch of a mirror's record."""
    for each in state.clusters:
        epochs = [entry.epoch for entry in each.log]
        if epochs != sorted(epochs):
            return f"epochs fall in {each.log}"
        if each.mirror is not None and epochs and epochs[-1] > each.epoch:
            return f"the log has epoch {epochs[-1]}, and the record {each.epoch}"
    return None


def _lost_by_hand_over(state: State, at: int) -> str | None:
    """PlannedLosesNothing: after a hand-over, the new writer has every acknowledged record."""
    kept = state.lost.union(*(each.tail for each in state.clusters))
    missing = state.acknowledged - kept - {entry.number for entry in state.clusters[at].log}
    return f"the hand-over lost {sorted(missing)}" if missing else None


_BACK: Final = World(produces=3, elections=0, switches=1, adoptions=1)
RULES: Final = {
    "hand-over, 3 records, 1 election": World(produces=3),
    "unclean election at the source": World(produces=3, losses=1),
    "two promotions, 2 elections": World(produces=2, switches=2, elections=2),
    "failover and back": replace(_BACK, elections=1),
    "failover, back, and there again": replace(_BACK, switches=2, adoptions=2),
}
"""Worlds with all rules, by name."""
SWITCHES: Final = {
    "era": replace(_BACK, elections=1),
    "raise first": World(produces=1),
    "clamp": World(produces=1),
    "fence first": World(produces=1, elections=0),
    "refuse": World(produces=1, elections=0),
    "epochs in the fetch": World(produces=3, losses=1),
    "late answers": World(produces=2, elections=0),
    "known eras": replace(_BACK, switches=2, adoptions=2),
    "epoch before end": replace(_BACK, switches=2, adoptions=2),
    "epoch at the end": World(produces=2, losses=1),
    "tail": _BACK,
    "wait": World(produces=1, elections=0),
    "ends once": World(produces=1, elections=0, switches=2),
}
"""For each rule, a world in which leaving out the rule leads to a violation."""


def without(rule: str) -> World:
    """Return the world of a rule, without the rule."""
    return replace(SWITCHES[rule], without=frozenset({rule}))


def explored(world: World, seconds_max: float) -> Report:
    """Search a world."""
    return search(LinkModel(world), seconds_max)
