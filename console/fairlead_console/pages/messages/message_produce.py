"""Produce to a topic: one record that a person types, or the records of a file in one transaction."""

from __future__ import annotations

import asyncio
import base64
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response, UploadFile
from fastapi.responses import HTMLResponse

import fairlead
from fairlead.cli.session import UsageError
from fairlead.errors import ClusterError, FixError
from fairlead_console.access import Access, ClusterAccess
from fairlead_console.body_limit import BODY_MIB_MAX
from fairlead_console.changes import Change, done
from fairlead_console.page import page
from fairlead_console.records.uploads import (
    LINES,
    SUFFIXES,
    UploadError,
    headers_of_lines,
    produce_file,
    suffix_of,
)

router = APIRouter()
_EMPTY = {"key": "", "value": "", "headers": "", "partition": "", "null": ""}


@router.get("/topics/{name}/produce")
async def show(request: Request, access: Access, name: str) -> HTMLResponse:
    """Show the forms for a record and for a file."""
    return await _form(request, access, name, _EMPTY)


@router.post("/topics/{name}/produce")
async def produce(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    key: Annotated[str, Form()] = "",
    value: Annotated[str, Form()] = "",
    headers: Annotated[str, Form()] = "",
    partition: Annotated[str, Form(max_length=10)] = "",
    null: Annotated[str, Form()] = "",
) -> Response:
    """Write one record, and redirect to its page."""
    values = {"key": key, "value": value, "headers": headers, "partition": partition, "null": null}
    # Browsers send line breaks of a text area as CR LF.
    data = None if null else value.replace("\r\n", "\n").encode()
    try:
        pairs = headers_of_lines(headers)
        place = _partition(partition)
        async with fairlead.Producer(
            **access.connection, request_timeout="10s", retry_timeout="5s"
        ) as producer:
            await access.admin.describe_topic(name)
            stored = await producer.send_and_wait(
                name, data, key.encode() if key else None, pairs, partition=place
            )
    except UploadError as error:
        return await _form(request, access, name, values, reason=str(error))
    except FixError as error:
        return await _form(request, access, name, values, error)
    sentence = f"Wrote the record at offset {stored.offset} of partition {stored.partition}."
    command = command_of(name, key, data, pairs, place)
    is_hidden = request.app.state.settings.hides_records(name)
    shown_at = f"/messages/{stored.partition}/{stored.offset}"
    return done(request, f"/topics/{name}{'' if is_hidden else shown_at}", sentence, command)


@router.post("/topics/{name}/produce-file")
async def upload(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    file: UploadFile,
    key_column: Annotated[str, Form(max_length=255)] = "",
) -> Response:
    """Write the records of a file, all or none."""
    topic = await access.admin.describe_topic(name)
    try:
        suffix = suffix_of(file.filename or "")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"file{suffix}"
            await asyncio.to_thread(_copy, file, path)
            line_bytes_max = int(str(topic.config["max.message.bytes"].value))
            records = await produce_file(access.connection, name, path, key_column or None, line_bytes_max)
    except (UploadError, UsageError) as error:
        return await _form(request, access, name, _EMPTY, reason=f"No record was written. {error}")
    except FixError as error:
        return await _form(request, access, name, _EMPTY, error)
    words = ["fairlead", "produce", name, "--transaction"]
    if suffix != LINES:
        words += ["--file", file.filename or "", *(["--key-column", key_column] if key_column else [])]
    command = shlex.join(words) + (f" < {shlex.quote(file.filename or '')}" if suffix == LINES else "")
    return done(request, f"/topics/{name}", f"Wrote {records} records of {file.filename}.", command)


def _copy(file: UploadFile, path: Path) -> None:
    with path.open("wb") as copy:
        shutil.copyfileobj(file.file, copy)


def _partition(text: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal():
        msg = f"partition: a number from 0 on; found {text!r}"
        raise UploadError(msg)
    return int(text)


def command_of(
    topic: str, key: str, value: bytes | None, headers: list[tuple[str, bytes | None]], partition: int | None
) -> str:
    """Return the command that writes the same record; an empty value, or one with line breaks, is in base64."""
    words = ["fairlead", "produce", topic]
    text = "" if value is None else value.decode()
    if value is None:
        marker = "NULL" if key != "NULL" else "NONE"
        words += [*(["-k", key] if key else []), "--null-marker", marker]
        source = f"echo {marker}"
    elif "\n" in text or not text:
        encoded_key = base64.b64encode(key.encode()).decode()
        words += ["--encoding", "base64", *(["-k", encoded_key] if key else [])]
        source = f"echo {base64.b64encode(value).decode()}"
    else:
        words += ["-k", key] if key else []
        source = shlex.join(["printf", "%s\\n", text])
    for name, content in headers:
        words += ["-H", f"{name}:{(content or b'').decode()}"]
    if partition is not None:
        words += ["--partition", str(partition)]
    return f"{source} | {shlex.join(words)}"


async def _form(
    request: Request,
    access: ClusterAccess,
    name: str,
    values: Mapping[str, str],
    error: ClusterError | None = None,
    reason: str = "",
) -> HTMLResponse:
    topic = await access.admin.describe_topic(name)
    return await page(
        request,
        "message_produce/produce.html",
        title=f"{name}: produce",
        access=access,
        status=422 if reason else 200 if error is None else error.status,
        error=error,
        reason=reason,
        topic=topic,
        values=values,
        suffixes=SUFFIXES,
        body_bytes_max=BODY_MIB_MAX * 1024 * 1024,
    )
