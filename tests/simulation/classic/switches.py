"""Rules of classic groups that can be dropped.

Rules of the shells (the code that runs the pure packages) are dropped in the simulator's twins of the shells. Rules of
the pure package are dropped in the production code.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from classic.coordinator import Coordinator
from fairlead_broker.groups.classic.group import ClassicGroup
from fairlead_broker.groups.classic.messages import ClassicChange, ClassicTurn, Join, Refusal
from groups import guards
from simulator.switches import Switch

_send = Coordinator._send
_prepare = ClassicGroup._prepare
_replace = ClassicGroup._replace


def _send_after_answers(self: Coordinator, change: ClassicChange, portions: Any) -> None:
    assert self.group is not None, "loaded"
    _send(self, change, portions)
    turn = self.group.stored(change)
    self.group._unstored += 1
    for token, reply in turn.replies:
        self.reply(self._waiting.pop(token), reply)


def _refuses_unknown_members(self: ClassicGroup, member_id: str, generation: int) -> Refusal | None:
    return None if member_id in self.members else Refusal.UNKNOWN_MEMBER_ID


def _prepare_without_end(self: ClassicGroup, turn: ClassicTurn, now: float) -> None:
    _prepare(self, turn, now)
    self._join_ends_at = inf


def _replace_at_once(self: ClassicGroup, event: Join, member: Any, turn: ClassicTurn, now: float) -> None:
    _replace(self, event, member, turn, now)
    stored, self._stored = self._stored, frozenset(self.members)
    self._answer_replacements(turn)
    self._stored = stored


SWITCHES: Final = (
    Switch(
        "claim-compare",
        "5.1 a coordinator's write compares its claim of the group",
        (guards, "claimed", lambda group, revision: ()),
    ),
    Switch(
        "answer-after-write",
        "5.1 members get their assignments only after these are stored",
        (Coordinator, "_send", _send_after_answers),
    ),
    Switch(
        "answer-with-lease",
        "5.1 a coordinator whose lease is in doubt answers nothing",
        (guards, "may_answer", lambda broker: True),
    ),
    Switch(
        "commit-generation",
        "a commit is accepted only in the current generation",
        (ClassicGroup, "commit_refusal", _refuses_unknown_members),
    ),
    Switch(
        "rebalances-end",
        "a rebalance continues without the members that do not join in time",
        (ClassicGroup, "_prepare", _prepare_without_end),
    ),
    Switch(
        "static-stored",
        "the next process of a static member is answered once its id is stored",
        (ClassicGroup, "_replace", _replace_at_once),
    ),
)
