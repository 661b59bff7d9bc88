"""Steps of the model of transactions: the store, client instances, brokers and leaders of partitions.

Each function yields the steps of one part of the cluster. Rules are named by the numbers of the protocol's section on
transactions; `World.without` names the rules that a world leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator

from exhaustive_search import Step
from transaction_log import is_confirmed, outcome_of, producer_of
from transaction_state import (
    ABORT,
    ABORTING,
    COMMIT,
    COMMITTING,
    DATA,
    DEAD,
    IDLE,
    PRODUCING,
    READING,
    STARTING,
    Decide,
    Decision,
    End,
    Ended,
    Entry,
    Instance,
    Part,
    Produce,
    Record,
    State,
    World,
    Write,
)

Steps = Iterator[Step[State]]


def steps_of(state: State, world: World) -> Steps:
    """Yield all steps from a state."""
    yield from _of_store(state, world)
    for at in range(len(state.instances)):
        yield from _of_instance(state, world, at)
    yield from _of_brokers(state, world)
    for partition in range(world.partitions):
        yield from _of_leader(state, world, partition)
    if "offsets apart" in world.without:
        done = sum(each.outcome == COMMIT for each in state.decided)
        if state.group.offset < done:
            group = state.group._replace(offset=done)
            yield Step("the offset is written after the decision", state._replace(group=group))


# -- changes of a state


def _with_part(state: State, partition: int, part: Part) -> State:
    parts = state.parts
    return state._replace(parts=(*parts[:partition], part, *parts[partition + 1 :]))


def _appended(state: State, partition: int, entry: Entry) -> State:
    part = state.parts[partition]
    return _with_part(state, partition, part._replace(log=(*part.log, entry)))


def _with_instance(state: State, at: int, instance: Instance) -> State:
    others = state.instances
    return state._replace(instances=(*others[:at], instance, *others[at + 1 :]))


def _sent(state: State, message: Produce | Decide | End) -> State:
    return state._replace(messages=state.messages | {message})


def _written(state: State, write: Write) -> State:
    """Return the state with a write on its way to the store; the write arrives at any later time, or never."""
    return state._replace(writes=tuple(sorted((*state.writes, write))))


def _raised(counts: tuple[int, ...], at: int) -> tuple[int, ...]:
    return (*counts[:at], counts[at] + 1, *counts[at + 1 :])


# -- the store


def _of_store(state: State, world: World) -> Steps:
    for at, write in enumerate(state.writes):
        left = state._replace(writes=(*state.writes[:at], *state.writes[at + 1 :]))
        after, violation = _landed(left, world, write)
        yield Step(f"the store gets {write}", after, violation)


def _landed(state: State, world: World, write: Write) -> tuple[State, str | None]:
    """Return the state after a write has reached the store, and the violation, if any."""
    without = world.without
    if not write.is_fresh and "compare" not in without:
        return state, None
    has_offset = write.offset >= 0
    is_member = state.group.owner == write.instance or not world.has_group
    if has_offset and not is_member and "member epoch" not in without:
        # The same write compares the owner of the group.
        return state, None
    before = state.records[write.name]
    records = (*state.records[: write.name], write.record, *state.records[write.name + 1 :])
    writes = tuple(
        sorted(each._replace(is_fresh=each.is_fresh and each.name != write.name) for each in state.writes)
    )
    state = state._replace(records=records, writes=writes)
    if has_offset and "offsets apart" not in without:
        state = state._replace(group=state.group._replace(offset=write.offset))
    violation = None
    if write.record.ended != before.ended:
        state, violation = _decided(state, world, write)
    if write.by == "begin" and state.instances[write.instance].phase == STARTING:
        phase = PRODUCING if "offset after init" in without else READING
        own = state.instances[write.instance]
        begun = Instance(phase, write.record.epoch, own.input, world.zero, world.zero)
        state = _with_instance(state, write.instance, begun)
    return state, violation


def _decided(state: State, world: World, write: Write) -> tuple[State, str | None]:
    """Record the decision of a write, inform the leaders of a commit, and check the decision."""
    name, ended = write.name, write.record.ended
    before = next((each for each in state.decided if each[:2] == (name, ended.epoch)), None)
    if before is not None and "epoch per transaction" not in world.without:
        if before.outcome != ended.outcome:
            return state, f"transaction {ended.epoch} of producer {name} is decided twice"
        return state, None
    if before is not None and any(
        each.phase == PRODUCING and each.epoch == ended.epoch and any(each.sent) for each in state.instances
    ):
        return state, "a late request ends a later transaction of the same epoch"
    decision = Decision(name, ended.epoch, ended.outcome, write.named, write.input)
    state = state._replace(decided=tuple(sorted((*state.decided, decision))))
    if ended.outcome == ABORT:
        return state, None
    for partition in write.named:
        state = _sent(state, End(partition, name, ended.epoch))
    return state, _unlike_promised(state, world, decision)


def _unlike_promised(state: State, world: World, decision: Decision) -> str | None:
    """Return how the commits break a promise about inputs, offsets or sent records, or None."""
    done = sorted(each.input for each in state.decided if each.outcome == COMMIT)
    if done != list(range(len(done))):
        return f"inputs {done} are committed"
    if "offsets apart" not in world.without and state.group.offset != len(done):
        return f"the offset is {state.group.offset} after {len(done)} commits"
    for at, own in enumerate(state.instances):
        is_own = world.name_of(at) == decision.name and own.epoch == decision.epoch
        if not is_own or own.phase != COMMITTING:
            continue
        for partition, part in enumerate(state.parts):
            stored = sum(
                each.kind == DATA and each[1:3] == decision[:2] and each.instance == at for each in part.log
            )
            if stored < own.sent[partition] or (own.sent[partition] and partition not in decision.named):
                return f"epoch {decision.epoch} is committed without records of partition {partition}"
    return None


# -- client instances


def _of_instance(state: State, world: World, at: int) -> Steps:
    own = state.instances[at]
    if own.phase == IDLE:
        started = _with_instance(state, at, own._replace(phase=STARTING, input=state.group.offset))
        if world.has_group:
            started = started._replace(group=started.group._replace(owner=at))
        yield Step(f"instance {at} starts", started, is_fault=True)
    if own.phase == READING:
        ready = own._replace(phase=PRODUCING, input=state.group.offset)
        yield Step(f"instance {at} reads the offset", _with_instance(state, at, ready))
    if own.phase == PRODUCING and own.input < world.inputs and own.epoch <= world.inputs + 1:
        yield from _of_producing(state, world, at)
    if own.phase in {PRODUCING, COMMITTING}:
        yield from _acknowledgements(state, world, at)
    if own.phase != DEAD and state.crashes:
        dead = _with_instance(state, at, own._replace(phase=DEAD))
        yield Step(f"instance {at} dies", dead._replace(crashes=state.crashes - 1), is_fault=True)


def _of_producing(state: State, world: World, at: int) -> Steps:
    own, name = state.instances[at], world.name_of(at)
    for partition, sent in enumerate(own.sent):
        if sent < world.batches:
            batch = Produce(partition, name, own.epoch, sent, own.input, at)
            after = _with_instance(state, at, own._replace(sent=_raised(own.sent, partition)))
            label = f"instance {at} sends to {partition} in {own.epoch}"
            yield Step(label, _sent(after, batch), is_fault=True)
    is_acknowledged = own.sent == own.acked or "commit after acks" in world.without
    if is_acknowledged and _is_enough(world, own):
        named = tuple(
            partition
            for partition, sent in enumerate(own.sent)
            if sent and ("all named" not in world.without or partition == 0)
        )
        after = _with_instance(state, at, own._replace(phase=COMMITTING))
        request = Decide(name, own.epoch, COMMIT, at, named, own.input)
        yield Step(f"instance {at} requests the commit of {own.epoch}", _sent(after, request))
    if world.commits_with_batches and own.sent != own.acked and _is_enough(world, own):
        named = tuple(partition for partition, sent in enumerate(own.sent) if sent)
        after = _with_instance(state, at, own._replace(phase=COMMITTING))
        request = Decide(name, own.epoch, COMMIT, at, named, own.input, own.sent)
        yield Step(f"instance {at} sends its batches with the commit of {own.epoch}", _sent(after, request))
    if state.aborts and any(own.sent):
        after = _with_instance(state, at, own._replace(phase=ABORTING))._replace(aborts=state.aborts - 1)
        request = Decide(name, own.epoch, ABORT, at)
        yield Step(f"instance {at} requests the abort of {own.epoch}", _sent(after, request), is_fault=True)


def _is_enough(world: World, own: Instance) -> bool:
    """Return whether an instance has sent batches to enough partitions for a commit."""
    return sum(map(bool, own.sent)) >= world.partitions_min


def _acknowledgements(state: State, world: World, at: int) -> Steps:
    own, name = state.instances[at], world.name_of(at)
    for partition, part in enumerate(state.parts):
        batch = (DATA, name, own.epoch, own.acked[partition])
        if own.acked[partition] < own.sent[partition] and any(
            each[:4] == batch and each.instance == at for each in part.log[: part.known]
        ):
            after = own._replace(acked=_raised(own.acked, partition))
            yield Step(f"instance {at} is acknowledged by {partition}", _with_instance(state, at, after))


# -- brokers


def _of_brokers(state: State, world: World) -> Steps:
    has_room = len(state.writes) < world.writes_max
    for at, own in enumerate(state.instances):
        if own.phase == STARTING and has_room:
            yield _begun(state, world, at)
    for message in state.messages:
        if isinstance(message, Decide):
            yield from _requested(state, world, message, has_room=has_room)
            continue
        if isinstance(message, Produce):
            label, after = f"partition {message.partition} gets {message}", _produced(state, world, message)
        else:
            label = f"partition {message.partition} learns of the commit of {message.epoch}"
            after = _ended(state, world, message)
        if after is not None:
            yield Step(label, after)


def _begun(state: State, world: World, at: int) -> Step[State]:
    """Begin a transaction for an instance (rule 7.1.2)."""
    name, own = world.name_of(at), state.instances[at]
    record = state.records[name]
    if "init bump" in world.without:
        reading = own._replace(phase=READING, epoch=record.epoch)
        return Step(f"instance {at} takes epoch {record.epoch}", _with_instance(state, at, reading))
    ended = Ended(record.epoch, ABORT, "fenced")
    changed = Record(record.epoch + 1, ended, _kept(state, world, name))
    after = _written(state, Write(name, changed, -1, is_fresh=True, by="begin", instance=at))
    return Step(f"a broker begins {record.epoch + 1} for instance {at}", after)


def _kept(state: State, world: World, name: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the unfinished commits of a record, without the partitions that have confirmed (rule 7.3.4)."""
    if "unfinished stay" in world.without:
        return ()
    kept = []
    for epoch, named in state.records[name].unfinished:
        left = tuple(each for each in named if not is_confirmed(state.parts[each], name, epoch, world))
        if left:
            kept.append((epoch, left))
    return tuple(kept)


def _requested(state: State, world: World, request: Decide, *, has_room: bool) -> Steps:
    """Yield what a broker does with a request to commit or abort (rules 7.1.3 to 7.1.5)."""
    record = state.records[request.name]
    own = state.instances[request.instance]
    if request.epoch == record.epoch:
        if has_room and ("commit after storing" in world.without or _is_stored(state, request)):
            yield from _deciding(state, world, request)
        if "definite answer" in world.without and request.outcome == COMMIT and state.writes:
            yield _answered(state, world, request, ABORT)
    if record.epoch > request.epoch or (
        "epoch per transaction" in world.without and record.ended.epoch == request.epoch
    ):
        if own.epoch != request.epoch or own.phase not in {COMMITTING, ABORTING}:
            return
        ended = record.ended
        is_known = ended.epoch == request.epoch and (ended.reason != "fenced" or "reason" in world.without)
        if request.stored and "repeat as decided" in world.without:
            yield _answered(state, world, request, COMMIT)
        yield _answered(state, world, request, ended.outcome if is_known else None)


def _is_stored(state: State, request: Decide) -> bool:
    """Return whether the batches that a request contains are acknowledged by their leaders (rule 7.1.9)."""
    return all(
        count
        <= sum(
            each[:3] == (DATA, request.name, request.epoch) and each.instance == request.instance
            for each in state.parts[partition].log[: state.parts[partition].known]
        )
        for partition, count in enumerate(request.stored)
    )


def _deciding(state: State, world: World, request: Decide) -> Steps:
    name, epoch = request.name, request.epoch
    kept = _kept(state, world, name)
    following = epoch if "epoch per transaction" in world.without else epoch + 1
    if request.outcome == ABORT:
        record = Record(following, Ended(epoch, ABORT, "client"), kept)
        write = Write(name, record, -1, is_fresh=True, by="abort", instance=request.instance)
    elif len(kept) >= world.unfinished_max:
        return
    elif world.has_group and state.group.owner != request.instance and "member epoch" not in world.without:
        yield _answered(state, world, request, None)
        return
    else:
        record = Record(following, Ended(epoch, COMMIT, "client"), (*kept, (epoch, request.named)))
        write = Write(
            name,
            record,
            request.input + 1,
            is_fresh=True,
            by="commit",
            instance=request.instance,
            named=request.named,
            input=request.input,
        )
    if not any(each[4:] == write[4:] and each.name == name for each in state.writes):
        yield Step(f"a broker writes the {write.by} of {epoch}", _written(state, write))


def _answered(state: State, world: World, request: Decide, outcome: int | None) -> Step[State]:
    """Answer a client: its transaction has this outcome, or the client is fenced."""
    at, epoch = request.instance, request.epoch
    own = state.instances[at]
    label = f"instance {at} learns {outcome} of {epoch}"
    if own.epoch != epoch or own.phase not in {COMMITTING, ABORTING}:
        return Step(label, state)
    if outcome is None:
        return Step(label, _with_instance(state, at, own._replace(phase=DEAD)))
    violation = None
    has_own_epoch = "epoch per transaction" not in world.without
    decided = next((each.outcome for each in state.decided if each[:2] == (request.name, epoch)), None)
    if has_own_epoch and decided != outcome:
        violation = f"a client receives {outcome} of {epoch}, which is decided as {decided}"
    following = Instance(
        PRODUCING,
        epoch + 1 if has_own_epoch else epoch,
        own.input + (outcome == COMMIT),
        world.zero,
        world.zero,
    )
    return Step(label, _with_instance(state, at, following), violation)


# -- leaders of partitions


def _produced(state: State, world: World, batch: Produce) -> State | None:
    """Return the state after a batch was appended, or None if the leader refuses or holds the batch (rule 7.2.3)."""
    without, epoch = world.without, batch.epoch
    stands = producer_of(state.parts[batch.partition].log, batch.name, without)
    if epoch < stands.epoch and "lower epoch" not in without:
        return None
    if epoch == stands.epoch and stands.has_ended and "fence after marker" not in without:
        return None
    if epoch > stands.epoch and stands.first is not None and "resolve before higher" not in without:
        return None
    if "sequence" not in without:
        is_same = epoch == stands.epoch and not stands.has_ended
        is_lower = epoch < stands.epoch
        if not is_lower and batch.sequence != (stands.next_sequence if is_same else 0):
            return None
    entry = Entry(DATA, batch.name, epoch, batch.sequence, batch.input, batch.instance)
    return _appended(state, batch.partition, entry)


def _ended(state: State, world: World, end: End) -> State | None:
    """Return the state after the marker of a commit was appended, or None if none is due (rule 7.2.5)."""
    stands = producer_of(state.parts[end.partition].log, end.name, world.without)
    if "exact marker" not in world.without:
        if stands.epoch > end.epoch or (stands.epoch == end.epoch and stands.has_ended):
            return None
        if stands.first is not None and stands.epoch < end.epoch:
            return None
    elif stands.first is None and stands.has_ended:
        return None
    return _appended(state, end.partition, Entry(COMMIT, end.name, end.epoch))


def _of_leader(state: State, world: World, partition: int) -> Steps:
    part = state.parts[partition]
    for name in range(len(state.records)):
        yield from _endings(state, world, partition, name)
    end = len(part.log)
    if part.high_watermark < end:
        after = part._replace(high_watermark=end, known=end)
        yield Step(f"the high watermark of {partition} reaches the end", _with_part(state, partition, after))
    if part.known < part.high_watermark:
        after = part._replace(known=part.high_watermark)
        yield Step(
            f"the leader of {partition} learns its high watermark", _with_part(state, partition, after)
        )
    if state.leader_changes and part.log:
        left = state._replace(leader_changes=state.leader_changes - 1)
        for kept in range(part.high_watermark, end + 1):
            after = Part(part.log[:kept], min(part.high_watermark, kept), 0)
            label = f"another leader of {partition} has {kept} of {end}"
            yield Step(label, _with_part(left, partition, after), is_fault=True)


def _endings(state: State, world: World, partition: int, name: int) -> Steps:
    """Yield the steps with which the leader itself ends a producer's open transaction (rules 7.3.2 and 7.3.3)."""
    epoch, _, first, _ = producer_of(state.parts[partition].log, name, world.without)
    if first is None:
        return
    record = state.records[name]
    if epoch < record.epoch and "look" not in world.without:
        outcome = outcome_of(record, partition, epoch)
        label = f"partition {partition} reads the record and ends {epoch} with {outcome}"
        yield Step(label, _appended(state, partition, Entry(outcome, name, epoch)))
    elif world.has_timeout and epoch == record.epoch:
        if "abort by decision" in world.without:
            label = f"partition {partition} aborts {epoch} without a decision"
            yield Step(label, _appended(state, partition, Entry(ABORT, name, epoch)))
        elif len(state.writes) < world.writes_max:
            aborted = Record(epoch + 1, Ended(epoch, ABORT, "timeout"), _kept(state, world, name))
            after = _written(state, Write(name, aborted, -1, is_fresh=True, by="timeout"))
            yield Step(f"partition {partition} requests the abort of {epoch}", after)
