"""Steps of the model of quorum replication: brokers, faults, late messages, the store and controllers.

Each function yields the successor states (drafts) that one part of the cluster can cause. A draft that exceeds a limit
of its world is left out by `quorum_model`.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorum_rules import Draft
from quorum_state import (
    APPEND,
    DAMAGE,
    KILL,
    LEASE,
    MOVE,
    POWER,
    REASSIGN,
    ROLL,
    WIPE,
    Broker,
    LateReport,
    Place,
    Plan,
    Record,
    Registration,
    Report,
    State,
    Voter,
    World,
)

Steps = Iterator[tuple[str, Draft]]


def steps_of(state: State, world: World) -> Steps:
    """Yield all steps from a state."""
    for at, broker in enumerate(state.brokers):
        if not broker.is_up:
            yield from _of_ended(state, world, at)
            continue
        yield from _of_mirror(state, world, at)
        yield from _of_leader(state, world, at)
        yield from _of_follower(state, world, at)
        yield from _of_answers(state, world, at)
        yield from _of_faults(state, world, at)
    yield from _of_late_reports(state, world)
    yield from _of_store(state, world)
    yield from _of_controller(state, world)
    yield from _of_reassignment(state, world)


def _left(state: State, kind: str) -> int:
    return dict(state.left).get(kind, 0)


# -- starts and stops


def _of_ended(state: State, world: World, at: int) -> Steps:
    draft = Draft(state, world)
    if state.registered[at] is not None:
        draft.registered[at] = None
        yield f"the lease of ended broker {at} expires", draft
        return
    broker, record = state.brokers[at], state.records[-1]
    epoch = broker.epoch + 1
    draft.change(
        at,
        is_up=True,
        epoch=epoch,
        behind=0,
        is_marked=False,
        intact_since=broker.intact_since if broker.is_marked else epoch,
        old_log=broker.log[: broker.synced] if _left(state, ROLL) else broker.old_log,
    )
    draft.registered[at] = Registration(
        epoch, broker.directory, broker.last_epoch, draft.brokers[at].intact_since
    )
    place = record.replicas[at]
    is_old = any(each.broker == at and each.epoch > broker.last_epoch for each in record.voters)
    if is_old and place and place.directory == broker.directory and "old copy" not in world.without:
        draft.leave(at)  # Q12: an old copy gives up its vote before it stores its incarnation.
    else:
        draft.change(at, last_epoch=epoch)
    log = draft.brokers[at].log
    draft.change(at, high_watermark=min(broker.high_watermark, len(log)))
    draft.begin_term(at)
    yield f"{at} starts in incarnation {epoch}", draft


def _of_faults(state: State, world: World, at: int) -> Steps:
    broker = state.brokers[at]
    for kind in (KILL, POWER, WIPE, ROLL):
        if not _left(state, kind):
            continue
        draft = _ended(state, world, at, kind)
        if kind == ROLL and broker.old_log:
            other = _ended(state, world, at, kind)
            old = broker.old_log
            other.change(at, log=old, synced=len(old), last_epoch=broker.epoch - 1)
            yield f"the disk of {at} is set back by one incarnation", other
        yield f"{kind} of {at}", draft
    registered = state.registered[at]
    if _left(state, LEASE) and registered is not None:
        draft = Draft(state, world)
        draft.spend(LEASE)
        draft.registered[at] = None
        yield f"the lease of running broker {at} ends", draft
    if registered is None:
        draft = Draft(state, world)
        epoch = broker.epoch + 1
        draft.registered[at] = Registration(epoch, broker.directory, broker.last_epoch, broker.intact_since)
        draft.change(
            at,
            epoch=epoch,
            last_epoch=epoch,
            term=None,
            proposal=None,
            is_reconciled=False,
            reports=_none(world),
        )
        draft.begin_term(at)
        yield f"{at} registers again in incarnation {epoch}", draft
    is_current = registered is not None and registered.epoch == broker.epoch
    if (
        _left(state, DAMAGE)
        and broker.log
        and not broker.behind
        and is_current
        and state.records[-1].replicas[at]
    ):
        draft = Draft(state, world)
        draft.spend(DAMAGE)
        if "leave before dropping" in world.without or draft.leave(at):
            draft.change(
                at,
                log=(),
                synced=0,
                high_watermark=0,
                is_reconciled=False,
                term=None,
                proposal=None,
                reports=_none(world),
            )
        yield f"{at} finds damage, gives up its vote and drops its records", draft


def _ended(state: State, world: World, at: int, kind: str) -> Draft:
    broker, draft = state.brokers[at], Draft(state, world)
    draft.spend(kind)
    draft.change(
        at, is_up=False, behind=0, term=None, proposal=None, is_reconciled=False, reports=_none(world)
    )
    if kind == KILL:
        draft.change(at, is_marked=True)
    elif kind == POWER:
        draft.change(at, log=broker.log[: broker.synced])
    else:
        draft.change(at, log=(), synced=0, high_watermark=0, last_epoch=0, is_marked=False)
    if kind == WIPE:
        draft.change(at, directory=broker.directory + 1, generation=0)
    return draft


def _none(world: World) -> tuple[None, ...]:
    return (None,) * world.brokers


# -- running brokers


def _of_mirror(state: State, world: World, at: int) -> Steps:
    broker = state.brokers[at]
    if broker.behind:
        draft = Draft(state, world)
        draft.see_next(at)
        yield f"{at} sees the next record", draft
    is_unchanged = "read-back releases" in world.without and not broker.behind
    if broker.proposal is not None and (broker.proposal.is_refused or is_unchanged):
        draft = Draft(state, world)
        draft.change(at, proposal=None)
        draft.commit(at)
        yield f"{at} drops its proposal", draft
    if broker.synced < len(broker.log):
        draft = Draft(state, world)
        draft.change(at, synced=len(broker.log))
        draft.commit(at)
        yield f"{at} syncs", draft


def _of_leader(state: State, world: World, at: int) -> Steps:
    broker = state.brokers[at]
    if broker.term is None:
        return
    left = _left(state, APPEND)
    if left:
        draft = Draft(state, world)
        draft.spend(APPEND, is_fault=False)
        draft.append(at, world.appends - left + 1)
        draft.commit(at)
        yield f"{at} appends in epoch {broker.term.epoch}", draft
    record = Draft(state, world).seen(at)
    if broker.proposal is not None or len(state.puts) >= 2 or record.leader != (at, broker.epoch):
        return
    for follower in range(world.brokers):
        changed = _with_voter(state, world, at, follower, record)
        if changed is not None:
            draft = Draft(state, world)
            if _may_propose(draft, at, changed):
                report = broker.reports[follower]
                assert report is not None, "a voter has reported"
                draft.propose(at, changed, (Voter(follower, report.epoch),))
                yield f"{at} proposes the voter {follower} in incarnation {report.epoch}", draft
    if world.changed_write is not None and record.write != world.changed_write:
        changed, draft = record._replace(write=world.changed_write), Draft(state, world)
        if broker.high_watermark > broker.term.start and _may_propose(draft, at, changed):
            draft.propose(at, changed, ())
            yield f"{at} proposes W = {world.changed_write}", draft


def _may_propose(draft: Draft, at: int, record: Record) -> bool:
    """Return whether W of the new voters have everything that may be committed (Q9)."""
    broker = draft.brokers[at]
    assert broker.term is not None, "a leader proposes"
    promised = broker.high_watermark
    if "epoch start for voters" not in draft.without:
        promised = max(promised, broker.term.start)
    return draft.held(at, record) >= promised or "W hold all" in draft.without


def _with_voter(state: State, world: World, at: int, follower: int, record: Record) -> Record | None:
    """Return the record in which a follower is a voter in the incarnation that it has reported, or None."""
    broker, place = state.brokers[at], record.replicas[follower]
    report, registered = broker.reports[follower], state.registered[follower]
    if report is None or registered is None or place is None or follower == at:
        return None
    voter = Voter(follower, report.epoch)
    if registered.epoch != report.epoch or (voter in record.voters and place == report.place):
        return None
    is_another = place.directory == report.place.directory and place.generation != report.place.generation
    if is_another and "generation" not in world.without:
        return None
    replicas = list(record.replicas)
    replicas[follower] = report.place
    leaving = {follower}
    if follower == record.adding:
        assert broker.term is not None, "a leader proposes"
        if broker.high_watermark <= broker.term.start or record.removing == at:
            return None
        leaving.add(record.removing)
        if record.removing >= 0:
            replicas[record.removing] = None
        record = record._replace(adding=-1, removing=-1)
    kept = [each for each in record.voters if each.broker not in leaving]
    return record._replace(replicas=tuple(replicas), voters=tuple(sorted([*kept, voter])))


def _of_follower(state: State, world: World, at: int) -> Steps:
    broker, record = state.brokers[at], Draft(state, world).seen(at)
    if broker.term is not None or record.leader is None or not record.replicas[at]:
        return
    leader = record.leader.broker
    if leader != at and _serves(state, leader, record.epoch, at):
        draft = Draft(state, world)
        draft.fetch(at, leader)
        yield f"{at} fetches from {leader}", draft
        if world.has_small_fetches:
            missing = len(state.brokers[leader].log) - len(broker.log)
            for entries in (1, 0):
                if entries == 0 or missing > 1:
                    draft = Draft(state, world)
                    draft.fetch(at, leader, entries)
                    yield f"{at} fetches {entries} records from {leader}", draft
    may_report = broker.is_reconciled or "progress before reconciling" in world.without
    if world.has_late_reports and broker.late_report is None and may_report and broker.synced:
        draft = Draft(state, world)
        draft.change(at, late_report=LateReport(record.epoch, broker.epoch, broker.synced, broker.generation))
        yield f"{at} reports its synced offset {broker.synced}", draft


def _serves(state: State, leader: int, epoch: int, follower: int) -> bool:
    broker: Broker = state.brokers[leader]
    shown = state.records[-1 - broker.behind]
    is_leader = broker.is_up and broker.term is not None and broker.term.epoch == epoch
    return is_leader and shown.replicas[follower] is not None


def _of_answers(state: State, world: World, at: int) -> Steps:
    broker, top, registered = state.brokers[at], state.records[-1], state.registered[at]
    record, draft = Draft(state, world).seen(at), Draft(state, world)
    answer = draft.answer(at)
    is_old = broker.term is None and record.leader is not None and record.replicas[at] and broker.behind
    if "promise" in world.without and is_old and top.leader is None and state.answers[at] != answer:
        draft.answers[at] = answer
        yield f"{at} answers without having seen the vacancy", draft
    is_current = registered is not None and registered.epoch == broker.epoch
    is_vacant = top.leader is None and record.leader is None and record.epoch == top.epoch
    if state.plan is None and is_vacant and is_current and state.answers[at] != answer:
        draft = Draft(state, world)
        draft.answers[at] = answer
        yield f"{at} promises epoch {top.epoch}: {answer.place}", draft


# -- messages, the store and controllers


def _of_late_reports(state: State, world: World) -> Steps:
    for at, broker in enumerate(state.brokers):
        late = broker.late_report
        if late is None:
            continue
        draft = Draft(state, world)
        draft.change(at, late_report=None)
        for leader, other in enumerate(state.brokers):
            known = other.reports[at]
            if leader == at or other.term is None or other.term.epoch != late.leader_epoch or known is None:
                continue
            if known.place.generation != late.generation and "generation" not in world.without:
                continue
            if known.epoch == late.epoch or "progress without broker epoch" in world.without:
                counted = Report(
                    known.epoch, max(known.end, late.synced), max(known.synced, late.synced), known.place
                )
                draft.change(leader, reports=(*other.reports[:at], counted, *other.reports[at + 1 :]))
                draft.commit(leader)
        yield f"the report {late} of {at} arrives", draft


def _of_store(state: State, world: World) -> Steps:
    for at, put in enumerate(state.puts):
        others = (*state.puts[:at], *state.puts[at + 1 :])
        draft = Draft(state, world)
        draft.puts = others
        draft.land(put)
        yield f"the put of {put.sender} reaches the store", draft
        broker = state.brokers[put.sender.broker]
        if not broker.is_up or broker.epoch != put.sender.epoch:
            draft = Draft(state, world)
            draft.puts = others
            yield f"the put of {put.sender} is lost", draft
    if state.plan is not None:
        for label in ("reaches the store", "is lost"):
            draft = Draft(state, world)
            draft.plan = None
            if label != "is lost":
                draft.write_plan(state.plan)
            yield f"the put of the slow controller {label}", draft


def _of_controller(state: State, world: World) -> Steps:
    top = state.records[-1]
    is_dead = top.leader is not None and not Draft(state, world).is_live(top.leader)
    may_move = top.leader is not None and _left(state, MOVE)
    if (is_dead or may_move) and top.epoch < world.epoch_max:
        raised = Plan(top._replace(leader=None, epoch=top.epoch + 1), None, is_fresh=True)
        for draft in _written(state, world, raised):
            if not is_dead:
                draft.spend(MOVE)
            yield f"a controller raises the epoch to {top.epoch + 1}", draft
        if "raise first" in world.without:
            yield from _of_asking_first(state, world)
    if top.leader is not None:
        return
    for leader, record in Draft(state, world).appointments(top):
        for draft in _written(state, world, Plan(record, leader, is_fresh=True)):
            yield f"a controller appoints {leader} in epoch {top.epoch}", draft
    if top.epoch < world.epoch_max and world.has_slow_controller:
        draft = Draft(state, world)
        draft.store(top._replace(epoch=top.epoch + 1))
        yield f"another controller raises the epoch to {top.epoch + 1}", draft


def _written(state: State, world: World, plan: Plan) -> Iterator[Draft]:
    """Yield a controller's put that arrives at once, and one that arrives late."""
    draft = Draft(state, world)
    draft.write_plan(plan)
    yield draft
    if world.has_slow_controller and state.plan is None:
        draft = Draft(state, world)
        draft.plan = plan
        yield draft


def _of_asking_first(state: State, world: World) -> Steps:
    """Yield answers while the old epoch continues, and a put that raises the epoch and appoints a leader at once."""
    for at, broker in enumerate(state.brokers):
        registered = state.registered[at]
        if broker.is_up and registered and registered.epoch == broker.epoch and state.answers[at] is None:
            draft = Draft(state, world)
            draft.answers[at] = draft.answer(at)
            yield f"{at} reports its end", draft
    top = state.records[-1]
    for leader, record in Draft(state, world).appointments(top):
        draft = Draft(state, world)
        draft.write_plan(Plan(record._replace(epoch=top.epoch + 1), leader, is_fresh=True))
        yield f"a controller appoints {leader} in epoch {top.epoch + 1}", draft


def _of_reassignment(state: State, world: World) -> Steps:
    top = state.records[-1]
    if _left(state, REASSIGN) and top.adding < 0:
        present = [at for at, place in enumerate(top.replicas) if place]
        for added in range(world.brokers):
            for removed in present if added not in present else ():
                draft = Draft(state, world)
                draft.spend(REASSIGN)
                registered = state.registered[added]
                directory = registered.directory if registered else state.brokers[added].directory
                generation = max(broker.generation for broker in state.brokers) + 1
                draft.store(_placed(top, added, Place(directory, generation), added, removed))
                yield f"the controller adds {added} to remove {removed}", draft
    if top.adding < 0:
        return
    draft = Draft(state, world)
    draft.store(_placed(top, top.adding, None, -1, -1))
    yield "the controller cancels the reassignment", draft
    registered = state.registered[top.adding]
    is_led_by_leaving = top.leader is not None and top.leader.broker == top.removing
    if "leader finishes" in world.without and registered is not None and not is_led_by_leaving:
        broker = state.brokers[top.adding]
        if broker.is_up and len(broker.log) >= max(each.high_watermark for each in state.brokers):
            kept = [each for each in top.voters if each.broker not in (top.adding, top.removing)]
            voters = tuple(sorted([*kept, Voter(top.adding, registered.epoch)]))
            draft = Draft(state, world)
            draft.store(_placed(top, top.removing, None, -1, -1)._replace(voters=voters))
            yield "the controller finishes the reassignment", draft


def _placed(record: Record, at: int, place: Place | None, adding: int, removing: int) -> Record:
    replicas = (*record.replicas[:at], place, *record.replicas[at + 1 :])
    return record._replace(replicas=replicas, adding=adding, removing=removing)
