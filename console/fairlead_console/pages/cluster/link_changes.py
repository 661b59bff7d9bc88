"""Changes of links: create, change, adopt topics, delete."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import HTMLResponse

from fairlead.errors import ClusterError, FixError, LinkSourceUnreachableError, error_of
from fairlead_api.bodies.links import (
    AlterLinkPolicies,
    AlterLinkRequest,
    AlterNamePatterns,
    CreateLinkRequest,
    LinkPolicies,
    LinkSource,
    NamePatterns,
)
from fairlead_api.problems import ProblemError
from fairlead_console.access import Access, ClusterAccess
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.page import page

router = APIRouter()
Text = Annotated[str, Form(max_length=20_000)]
Truncated = Literal["follow", "stop"]
Expired = Literal["skip", "stop"]
Refused = FixError | LinkSourceUnreachableError | ProblemError


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that forms of new and of existing links share. Lists have one entry per line."""

    source: str = ""
    topics: str = ""
    exclude: str = ""
    groups: str = ""
    rate: str = ""
    truncated: Truncated = "follow"
    expired: Expired = "skip"

    @property
    def bytes_per_second(self) -> int | None:
        """Limit of the rate; None without a limit."""
        return int(self.rate) if self.rate else None

    def options(self) -> list[str]:
        """Return the options of the command line, without that of the rate."""
        words = []
        lists = {"source": self.source, "topics": self.topics, "exclude": self.exclude, "groups": self.groups}
        for option, text in lists.items():
            for entry in _entries(text):
                words += [f"--{option}", entry]
        return [*words, "--on-truncation", self.truncated, "--on-expiry", self.expired]


def _sent_fields(
    source: Text = "",
    topics: Text = "",
    exclude: Text = "",
    groups: Text = "",
    rate: Annotated[str, Form(pattern=r"^\s*\d{0,15}\s*$")] = "",
    truncated: Annotated[Truncated, Form()] = "follow",
    expired: Annotated[Expired, Form()] = "skip",
) -> Fields:
    return Fields(source, topics, exclude, groups, rate.strip(), truncated, expired)


SentFields = Annotated[Fields, Depends(_sent_fields)]


@router.get("/create-link")
async def new(request: Request, access: Access) -> HTMLResponse:
    """Show the form for a new link."""
    return await _form(request, access, Fields())


@router.post("/create-link")
async def create(
    request: Request,
    access: Access,
    _: Change,
    name: Annotated[str, Form(max_length=249)],
    fields: SentFields,
    prefix: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Create a link; a refusal is shown above the form."""
    name, prefix = name.strip(), prefix.strip()
    try:
        wanted = CreateLinkRequest(
            name=name,
            source=LinkSource(bootstrap=_entries(fields.source)),
            topics=NamePatterns(include=_entries(fields.topics), exclude=_entries(fields.exclude)),
            groups=NamePatterns(include=_entries(fields.groups)),
            prefix=prefix,
            policies=LinkPolicies(truncated=fields.truncated, expired=fields.expired),
            bytes_per_second=fields.bytes_per_second,
        )
        link = await access.admin.create_link(wanted)
    except (FixError, LinkSourceUnreachableError, ProblemError) as refused:
        return await _form(request, access, fields, name, prefix, refused)
    words = ["fairlead", "link", "create", name, *fields.options()]
    words += ["--prefix", prefix] if prefix else []
    words += ["--rate", fields.rate] if fields.rate else []
    sentence = f"The link {name} mirrors topics of cluster {link.source_cluster_id}."
    return done(request, f"/links/{name}", sentence, shlex.join(words))


@router.get("/links/{name}/change")
async def change(request: Request, access: Access, name: str) -> HTMLResponse:
    """Show the forms that change a link."""
    return await _change_page(request, access, name)


@router.post("/links/{name}/alter")
async def alter(request: Request, access: Access, _: Change, name: str, fields: SentFields) -> Response:
    """Replace addresses, patterns, policies and the limit of the rate of a link."""
    try:
        wanted = AlterLinkRequest(
            source=LinkSource(bootstrap=_entries(fields.source)),
            topics=AlterNamePatterns(include=_entries(fields.topics), exclude=_entries(fields.exclude)),
            groups=AlterNamePatterns(include=_entries(fields.groups)),
            policies=AlterLinkPolicies(truncated=fields.truncated, expired=fields.expired),
            bytes_per_second=fields.bytes_per_second,
        )
        await access.admin.alter_link(name, wanted)
    except (FixError, LinkSourceUnreachableError, ProblemError) as refused:
        return await _change_page(request, access, name, refused, fields)
    words = ["fairlead", "link", "alter", name, *fields.options(), "--rate", fields.rate or "none"]
    return done(request, f"/links/{name}", f"The link {name} is changed.", shlex.join(words))


@router.post("/links/{name}/adopt")
async def adopt(request: Request, access: Access, _: Change, name: str, adopted: Text) -> Response:
    """Make topics of this cluster mirrors of their copies in the source."""
    chosen = _entries(adopted)
    try:
        mirrors = await access.admin.adopt_link(name, chosen)
    except (FixError, LinkSourceUnreachableError) as refused:
        return await _change_page(request, access, name, refused)
    sentence = f"The link {name} mirrors {', '.join(each.topic for each in mirrors)}."
    return done(request, f"/links/{name}", sentence, shlex.join(["fairlead", "link", "adopt", name, *chosen]))


@router.post("/links/{name}/delete")
async def delete(
    request: Request, access: Access, _: Change, name: str, typed: Annotated[str, Form()]
) -> Response:
    """Delete a link without mirrors after the user has typed its name."""
    check_typed(typed, name)
    try:
        await access.admin.delete_link(name)
    except FixError as refused:
        return await _change_page(request, access, name, refused)
    return done(
        request, "/links", f"Deleted the link {name}.", shlex.join(["fairlead", "link", "delete", name])
    )


async def _form(
    request: Request,
    access: ClusterAccess,
    fields: Fields,
    name: str = "",
    prefix: str = "",
    refused: Refused | None = None,
) -> HTMLResponse:
    error = _shown(refused, f"link {name}")
    return await page(
        request,
        "link_changes/create.html",
        title="Create a link",
        access=access,
        status=200 if error is None else error.status,
        error=error,
        fields=fields,
        name=name,
        prefix=prefix,
    )


async def _change_page(
    request: Request,
    access: ClusterAccess,
    name: str,
    refused: Refused | None = None,
    fields: Fields | None = None,
) -> HTMLResponse:
    link, error = await access.admin.describe_link(name), _shown(refused, f"link {name}")
    current = Fields(
        source="\n".join(link.source.bootstrap),
        topics="\n".join(link.topics.include),
        exclude="\n".join(link.topics.exclude),
        groups="\n".join(link.groups.include),
        rate="" if link.bytes_per_second is None else str(link.bytes_per_second),
        truncated=link.policies.truncated,
        expired=link.policies.expired,
    )
    return await page(
        request,
        "link_changes/change.html",
        title=f"Change the link {name}",
        access=access,
        status=200 if error is None else error.status,
        error=error,
        link=link,
        fields=fields or current,
    )


def _shown(refused: Refused | None, subject: str) -> ClusterError | None:
    """Return a refusal as an error of the SDK; the types of request bodies refuse values with problems."""
    return error_of(refused, subject=subject) if isinstance(refused, ProblemError) else refused


def _entries(text: str) -> list[str]:
    """Return the entries of a list, which lines, spaces and commas separate."""
    return [entry for entry in re.split(r"[\s,]+", text) if entry]
