"""One record of a topic under an address that does not change, and its key and value as files."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from fairlead_console.access import Access, ShownRecords
from fairlead_console.page import page
from fairlead_console.records.contents import runs, runs_of_text
from fairlead_console.records.found import FoundRecord
from fairlead_console.records.one import OneRecord, one_record
from fairlead_console.records.query import OFFSET_MAX
from fairlead_console.records.views import VIEWS, View, headers_of, shown

router = APIRouter()
Partition = Annotated[int, Path(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Path(ge=0, le=OFFSET_MAX)]


@router.get("/topics/{name}/messages/{partition}/{offset}")
async def show(
    request: Request,
    access: Access,
    _: ShownRecords,
    name: str,
    partition: Partition,
    offset: Offset,
    view: Annotated[View, Query()] = "auto",
) -> HTMLResponse:
    """Show a record."""
    one = await one_record(access.connection, name, partition, offset)
    record = one.shown()
    if record is None:
        return await _missing(request, name, one, offset)
    headers = headers_of(record)
    return await page(
        request,
        "message/message.html",
        title=f"{name}: partition {partition}, offset {offset}",
        access=access,
        topic=name,
        one=one,
        record=record,
        view=view,
        views=VIEWS,
        key=None if record.key is None else runs(record.key.data),
        same_key=_same_key(record),
        value=shown(record.value, headers, view),
        headers=[(runs_of_text(each), None if text is None else runs(text)) for each, text in headers],
    )


@router.get("/topics/{name}/messages/{partition}/{offset}/{part}")
async def download(
    request: Request,
    access: Access,
    _: ShownRecords,
    name: str,
    partition: Partition,
    offset: Offset,
    part: Literal["key", "value"],
) -> Response:
    """Answer with the bytes of a key or value as a file, which a browser saves instead of showing it."""
    one = await one_record(access.connection, name, partition, offset)
    record = one.whole()
    if record is None:
        return await _missing(request, name, one, offset)
    found = record.key if part == "key" else record.value
    file_name = f"{name}-{partition}-{offset}.{part}"
    return Response(
        b"" if found is None else found.data,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{file_name}"'},
    )


def _same_key(record: FoundRecord) -> str:
    """Return the key as text; empty for a key that an address cannot contain."""
    if record.key is None or record.key.is_cut:
        return ""
    try:
        return record.key.data.decode()
    except UnicodeDecodeError:
        return ""


async def _missing(request: Request, name: str, one: OneRecord, offset: int) -> HTMLResponse:
    detail = (
        f"{name}-{one.partition} has the offsets {one.first} to {one.end - 1}."
        if one.first < one.end
        else f"{name}-{one.partition} has no records."
    )
    if one.first <= offset < one.end:
        detail = "The record was removed by compaction, or the offset is a mark of a transaction."
    return await page(
        request,
        "problem/error.html",
        title=f"No record has the offset {offset}",
        status=404,
        is_missing=True,
        detail=detail,
        next_step=f"See the messages of the topic: /topics/{name}/messages",
        code="",
    )
