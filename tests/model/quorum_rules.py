"""Rules of the model of quorum replication, as changes of one state: commits, votes, and elections by R answers.

`quorum_steps` calls the rules. The numbers refer to the rules of quorum replication; `World.without` names the rules
that a world leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quorum_state import (
    POWER,
    Answer,
    Broker,
    Entry,
    Place,
    Plan,
    Proposal,
    Put,
    Record,
    Report,
    State,
    Term,
    Voter,
    World,
    members,
    place_of,
)


class Draft:
    """A state that is being changed into its successor."""

    def __init__(self, state: State, world: World) -> None:
        self.world = world
        self.without = world.without
        self.records = list(state.records)
        self.registered = list(state.registered)
        self.brokers = list(state.brokers)
        self.puts = state.puts
        self.plan = state.plan
        self.answers = list(state.answers)
        self.left = dict(state.left)
        self.committed = state.committed
        self.writers = list(state.writers)
        self.violation: str | None = None
        self.is_over = False
        """Whether the step exceeds the world's limit on lagging mirrors or leader epochs; such a step is left out."""
        self.is_fault = False

    def change(self, broker: int, **fields: Any) -> None:
        """Change fields of a broker."""
        self.brokers[broker] = self.brokers[broker]._replace(**fields)

    def seen(self, broker: int) -> Record:
        """Return the record that a broker's mirror shows."""
        return self.records[-1 - self.brokers[broker].behind]

    def spend(self, kind: str, *, is_fault: bool = True) -> None:
        """Use one fault, or one piece of new work."""
        self.left[kind] -= 1
        self.is_fault = is_fault

    def freeze(self) -> State:
        """Return the changed state."""
        if self.world.is_synced and not self.left.get(POWER):
            # If no loss of power follows, a late fsync is the same as a late report.
            for at, broker in enumerate(self.brokers):
                if broker.is_up and broker.synced < len(broker.log):
                    self.change(at, synced=len(broker.log))
                    self.commit(at)
        kept = max((broker.behind for broker in self.brokers if broker.is_up), default=0) + 1
        return State(
            tuple(self.records[-kept:]),
            tuple(self.registered),
            tuple(self.brokers),
            self.puts,
            self.plan,
            tuple(self.answers),
            tuple(self.left.items()),
            self.committed,
            tuple(self.writers),
        )

    # -- the store

    def store(self, record: Record) -> None:
        """Put a record. Every mirror is one record further behind, and every other put is refused."""
        before = self.records[-1]
        if (record.epoch, record.leader) != (before.epoch, before.leader):
            self.answers = [None] * self.world.brokers
        self.records.append(record)
        for at, broker in enumerate(self.brokers):
            if broker.is_up:
                self.change(at, behind=broker.behind + 1)
                self.is_over = self.is_over or broker.behind + 1 > self.world.behind_max
        for put in self.puts:
            self.refuse(put)
        self.puts = ()
        if self.plan is not None:
            self.plan = self.plan._replace(is_fresh=False) if "guard" in self.without else None

    def refuse(self, put: Put) -> None:
        """Mark the proposal of a put as refused by the store."""
        broker = self.brokers[put.sender.broker]
        if broker.epoch == put.sender.epoch and broker.proposal == Proposal(put.record, is_refused=False):
            self.change(put.sender.broker, proposal=Proposal(put.record, is_refused=True))

    def propose(self, at: int, record: Record, added: tuple[Voter, ...]) -> None:
        """Begin a put of a leader (Q9)."""
        is_fresh = self.brokers[at].behind == 0
        self.change(at, proposal=Proposal(record, is_refused=not is_fresh))
        self.commit(at)
        if not is_fresh:
            return
        put = Put(Voter(at, self.brokers[at].epoch), record, added)
        if self.world.has_late_puts:
            self.puts = (*self.puts, put)
        else:
            self.land(put)

    def land(self, put: Put) -> None:
        """Let a put of a leader reach the store, which compares the registrations."""
        if all(self.is_live(each) for each in (put.sender, *put.added)):
            self.store(put.record)
        else:
            self.refuse(put)

    def is_live(self, voter: Voter) -> bool:
        """Return whether an incarnation is registered."""
        registered = self.registered[voter.broker]
        return registered is not None and registered.epoch == voter.epoch

    # -- leaders

    def begin_term(self, at: int) -> None:
        """Begin a leadership with a batch, if the mirror's record names this incarnation (Q3)."""
        broker, record = self.brokers[at], self.seen(at)
        if record.leader == (at, broker.epoch) and broker.term is None:
            if broker.log and record.epoch <= broker.log[-1].epoch:
                return
            self.change(at, term=Term(record.epoch, len(broker.log)), reports=(None,) * self.world.brokers)
            if "epoch start" not in self.without:
                self.append(at, 0)
        self.commit(at)

    def append(self, at: int, value: int) -> None:
        """Append a record in the epoch of the leadership."""
        term = self.brokers[at].term
        assert term is not None, "a leader appends"
        if self.writers[term.epoch] not in (-1, at):
            self.violation = f"two brokers append in leader epoch {term.epoch}"
        self.writers[term.epoch] = at
        self.change(at, log=(*self.brokers[at].log, Entry(term.epoch, value)))

    def counted(self, at: int, record: Record, voter: Voter) -> int:
        """Return the offset that a voter has reported, in its entry's incarnation, directory and generation (Q2)."""
        broker = self.brokers[at]
        is_synced = self.world.is_synced and "synced counts" not in self.without
        if voter.broker == at:
            return broker.synced if is_synced else len(broker.log)
        report = broker.reports[voter.broker]
        if report is None or (report.epoch != voter.epoch and "entry life" not in self.without):
            return -1
        if record.replicas[voter.broker] != report.place and "generation" not in self.without:
            return -1
        return min(report.synced, report.end) if is_synced else report.end

    def held(self, at: int, record: Record) -> int:
        """Return the offset below which W voters of a record have all records."""
        counted = sorted((self.counted(at, record, each) for each in record.voters), reverse=True)
        return counted[record.write - 1] if len(counted) >= record.write else -1

    def commit(self, at: int) -> None:
        """Advance the high watermark of a leader (Q4)."""
        broker = self.brokers[at]
        if broker.term is None:
            return
        held = self.held(at, self.seen(at))
        if broker.proposal is not None and not broker.proposal.is_refused:
            proposed = self.held(at, broker.proposal.record)
            if "old voters count" in self.without:
                held = proposed
            elif "new voters count" not in self.without:
                held = min(held, proposed)
        if held <= broker.term.start and "own epoch" not in self.without:
            return
        if held > broker.high_watermark:
            self.change(at, high_watermark=held)
            below, before = broker.log[:held], self.committed
            if below[: len(before)] != before[:held]:
                self.violation = f"{below} is committed over {before}"
            if held > len(before):
                self.committed = below

    # -- brokers

    def see_next(self, at: int) -> None:
        """Let a mirror show the next record."""
        before = self.seen(at)
        self.change(at, behind=self.brokers[at].behind - 1, proposal=None)
        record = self.seen(at)
        if (record.epoch, record.leader) != (before.epoch, before.leader):
            self.change(at, term=None, reports=(None,) * self.world.brokers, is_reconciled=False)
        old, new = before.replicas[at], record.replicas[at]
        if old and not new and self.brokers[at].term is None:
            self.change(at, log=(), synced=0, high_watermark=0, is_reconciled=False)
        if new and not old:
            self.change(at, generation=new.generation)
        self.begin_term(at)

    def fetch(self, at: int, leader: int, entries: int | None = None) -> None:
        """Fetch from a leader. `entries`: number of records that arrive, or None for all."""
        follower, leading = self.brokers[at], self.brokers[leader]
        log, other = follower.log, leading.log
        if "truncate by epoch" in self.without:
            if not follower.is_reconciled:
                end = follower.high_watermark
                self.change(at, log=log[:end], synced=min(follower.synced, end), is_reconciled=True)
                return
        elif (cut := _parted(log, other)) is not None:
            self.change(
                at,
                log=log[:cut],
                synced=min(follower.synced, cut),
                high_watermark=min(follower.high_watermark, cut),
            )
            return
        report = Report(
            follower.epoch, len(log), follower.synced, Place(follower.directory, follower.generation)
        )
        self.change(leader, reports=_replaced(leading.reports, at, report))
        self.commit(leader)
        grown = log + other[len(log) :][:entries]
        high = follower.high_watermark
        if entries != 0:
            high = max(high, min(self.brokers[leader].high_watermark, len(grown)))
        self.change(at, is_reconciled=True, log=grown, high_watermark=high)

    def leave(self, at: int) -> bool:
        """Give up the vote of a broker before it drops bytes, if R voters remain (Q11)."""
        record, broker = self.records[-1], self.brokers[at]
        voters = tuple(each for each in record.voters if each.broker != at)
        if at in members(record) and len(voters) < len(members(record)) - record.write + 1:
            return False
        generation = broker.generation + 1
        replicas = record.replicas
        if replicas[at]:
            replicas = _replaced(replicas, at, Place(broker.directory, generation))
        leader, epoch = record.leader, record.epoch
        if leader is not None and leader.broker == at:
            leader, epoch = None, epoch + 1
            self.is_over = self.is_over or epoch > self.world.epoch_max
        self.store(record._replace(leader=leader, epoch=epoch, replicas=replicas, voters=voters))
        self.change(at, generation=generation, last_epoch=broker.epoch)
        return True

    # -- controllers

    def kept_everything(self, voter: Voter, record: Record) -> bool:
        """Return whether a registered voter has kept everything since its entry was written (Q7)."""
        registered, place = self.registered[voter.broker], record.replicas[voter.broker]
        if registered is None or place is None:
            return False
        if "directory" not in self.without and registered.directory != place.directory:
            return False
        is_live = registered.epoch == voter.epoch
        if "last_broker_epoch" not in self.without and registered.last_epoch < voter.epoch and not is_live:
            return False
        return (
            is_live
            or self.world.is_synced
            or registered.intact_since <= voter.epoch
            or "intact" in self.without
        )

    def promises(self, record: Record) -> list[tuple[Answer, int]]:
        """Return the answers to a vacancy that count for the election of a leader, with their brokers."""
        found = []
        for voter in record.voters:
            answer, registered = self.answers[voter.broker], self.registered[voter.broker]
            place = record.replicas[voter.broker]
            if (
                answer is not None
                and registered is not None
                and registered.epoch == answer.epoch
                and self.kept_everything(voter, record)
                and place is not None
                and place.generation == answer.generation
            ):
                found.append((answer, voter.broker))
        return found

    def appointments(self, record: Record) -> Iterator[tuple[Voter, Record]]:
        """Yield every record by which the controller may fill a vacancy (Q8)."""
        answers = self.promises(record)
        counted = len(record.voters) if "fixed N" in self.without else len(members(record))
        needed = counted - record.write + 1 - ("R" in self.without)
        if len(answers) < needed:
            return
        lives = {broker: answer.epoch for answer, broker in answers}
        for answer, broker in answers:
            if "by end alone" in self.without:
                better = sum(each.place[1] <= answer.place[1] for each, _ in answers)
            else:
                better = sum(each.place <= answer.place for each, _ in answers)
            if better < needed and "best" not in self.without:
                continue
            leader = Voter(broker, lives[broker])
            voters = tuple(sorted(Voter(at, lives.get(at, epoch)) for at, epoch in record.voters))
            yield leader, record._replace(leader=leader, voters=voters)

    def write_plan(self, plan: Plan) -> None:
        """Let a put of a controller reach the store, which compares mod revision and registration (Q8)."""
        if not plan.is_fresh and "guard" not in self.without:
            return
        if plan.appointee is not None and not self.is_live(plan.appointee):
            return
        self.store(plan.record)
        if plan.appointee is not None:
            broker = self.brokers[plan.appointee.broker]
            is_there = broker.is_up and broker.epoch == plan.appointee.epoch
            if is_there and broker.log[: len(self.committed)] != self.committed:
                self.violation = f"leader {plan.appointee} lacks {self.committed}: {broker.log}"

    def answer(self, at: int) -> Answer:
        """Return a broker's answer to a request for its log end."""
        broker = self.brokers[at]
        return Answer(broker.epoch, broker.generation, place_of(broker.log))


def _parted(log: tuple[Entry, ...], other: tuple[Entry, ...]) -> int | None:
    """Return where a follower truncates its log, or None if its log is a prefix of the leader's."""
    if not log:
        return None
    last = log[-1].epoch
    end = sum(entry.epoch <= last for entry in other)
    epoch = other[end - 1].epoch if end else 0
    if epoch == last and end >= len(log):
        return None
    return min(end, sum(entry.epoch <= epoch for entry in log), len(log))


def _replaced(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def is_full(state: State, world: World) -> bool:
    """Return whether a live leader has committed everything and every member is a voter."""
    record = state.records[-1]
    if record.epoch >= world.epoch_max:
        return True  # The bounded search has no further epoch in which the partition could recover.
    if record.leader is None:
        return False
    broker: Broker = state.brokers[record.leader.broker]
    return (
        broker.is_up
        and broker.term is not None
        and broker.term.epoch == record.epoch
        and broker.high_watermark == len(broker.log)
        and len(record.voters) == len(members(record))
        and record.adding < 0
    )
