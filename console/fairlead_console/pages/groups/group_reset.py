"""Reset of a group's offsets, with a preview of what would be read again or skipped."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from msgspec import UNSET

from fairlead.admin import ResetTo
from fairlead.errors import ClusterError, FixError, error_of
from fairlead_api.bodies.group_answers import ResetAnswer, ResetOffset
from fairlead_api.bodies.group_requests import ResetTarget
from fairlead_api.problems import ProblemError
from fairlead_console.access import Access
from fairlead_console.changes import Change, done
from fairlead_console.names import NameInPath, segment
from fairlead_console.page import page

router = APIRouter()

Kind = Literal["earliest", "latest", "time", "duration", "shift", "offset"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The position that a person has chosen, and the topic if the reset is limited to one topic."""

    to: Kind
    value: str
    topic: str

    @property
    def target(self) -> ResetTo:
        """Position as the SDK expects it. Raises `FixError` for a text that is not a number."""
        match self.to:
            case "earliest" | "latest":
                return self.to
            case "time":
                return ResetTarget(timestamp=self.value)
            case "duration":
                return ResetTarget(duration=self.value)
            case "shift":
                return ResetTarget(shift=self._number)
            case "offset":
                return ResetTarget(offset=self._number)
            case _:
                assert_never(self.to)

    @property
    def _number(self) -> int:
        try:
            return int(self.value)
        except ValueError:
            detail = f"{self.to} must be a whole number, not {self.value!r}"
            raise error_of(ProblemError("malformed_request", detail), subject="reset offsets") from None

    def command(self, group: str) -> str:
        """Return the command line that makes the same reset."""
        to = self.value or self.to
        if self.to == "time":
            to = f"@{self.value}"
        elif self.to == "shift":
            to = f"{self._number:+d}"
        words = ["fairlead", "group", "reset", group, "--to", to]
        return shlex.join([*words, "--topic", self.topic] if self.topic else words)


def _asked(
    to: Annotated[Kind, Query()] = "earliest",
    value: Annotated[str, Query(max_length=64)] = "",
    topic: Annotated[str, Query(max_length=249)] = "",
) -> Choice:
    return Choice(to, value.strip(), topic)


def _chosen(
    to: Annotated[Kind, Form()],
    value: Annotated[str, Form(max_length=64)] = "",
    topic: Annotated[str, Form(max_length=249)] = "",
) -> Choice:
    return Choice(to, value.strip(), topic)


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a reset on one partition."""

    offset: ResetOffset

    @property
    def again(self) -> int:
        """Number of offsets that would be read again."""
        return max(0, -self._forward)

    @property
    def skipped(self) -> int:
        """Number of offsets that would be skipped."""
        return max(0, self._forward)

    @property
    def problem(self) -> str:
        """Reason why the offset stays unchanged; empty if it changes."""
        return "" if self.offset.problem is UNSET else str(self.offset.problem.get("detail", ""))

    @property
    def _forward(self) -> int:
        before, after = self.offset.before, self.offset.after
        return 0 if before is None or after is None else after - before


@router.get("/groups/{name}/reset")
async def preview(
    request: Request, access: Access, name: NameInPath, choice: Annotated[Choice, Depends(_asked)]
) -> HTMLResponse:
    """Show the form, and the effect of the chosen position."""
    group = await access.admin.describe_group(name)
    topics = sorted({place.topic for place in await access.admin.group_offsets(name)})
    answer: ResetAnswer | None = None
    refused: ClusterError | None = None
    if request.query_params:
        try:
            answer = await access.admin.reset_group_offsets(
                name, choice.target, choice.topic or None, dry_run=True
            )
        except FixError as error:
            refused = error
    effects = [] if answer is None else [Effect(each) for each in answer.offsets]
    return await page(
        request,
        "group_reset/reset.html",
        title=f"Reset {name}",
        access=access,
        status=200 if refused is None else refused.status,
        group=group,
        topics=topics,
        choice=choice,
        error=refused,
        effects=effects,
        again=sum(each.again for each in effects),
        skipped=sum(each.skipped for each in effects),
        command_line=choice.command(name) if effects else "",
    )


@router.post("/groups/{name}/reset")
async def reset(
    request: Request, access: Access, _: Change, name: NameInPath, choice: Annotated[Choice, Depends(_chosen)]
) -> RedirectResponse:
    """Move the committed offsets."""
    answer = await access.admin.reset_group_offsets(name, choice.target, choice.topic or None)
    await access.observer.refresh()
    moved = sum(each.problem is UNSET for each in answer.offsets)
    sentence = f"Reset {moved} of {len(answer.offsets)} offsets of group {name}."
    return done(request, f"/groups/{segment(name)}", sentence, choice.command(name))
