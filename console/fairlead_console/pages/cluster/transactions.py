"""Transactions of producers: open transactions with their age and partitions; abort."""

from __future__ import annotations

import shlex
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead_console.access import Access
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.names import NameInPath, segment
from fairlead_console.page import page

router = APIRouter()
ROWS_MAX: Final = 200


@router.get("/transactions")
async def show(
    request: Request, access: Access, q: Annotated[str, Query(max_length=249)] = ""
) -> HTMLResponse:
    """Show the producers with transactions, those with an open transaction first."""
    found = await access.admin.list_transactions(q or None)
    found.sort(key=lambda each: (each.state != "open", not each.unfinished, each.name or each.transaction))
    return await page(
        request,
        "transactions/transactions.html",
        title="Transactions",
        access=access,
        refresh_seconds=10,
        q=q,
        transactions=found[:ROWS_MAX],
        total=len(found),
        open=sum(each.state == "open" for each in found),
        unfinished=sum(bool(each.unfinished) for each in found),
    )


@router.get("/transactions/{name}")
async def show_one(request: Request, access: Access, name: NameInPath) -> HTMLResponse:
    """Show the transactions of a producer, and the partitions in which one is open."""
    found = await access.admin.describe_transaction(name)
    return await page(
        request,
        "transactions/transaction.html",
        title=found.name or found.transaction,
        access=access,
        refresh_seconds=10,
        transaction=found,
    )


@router.post("/transactions/{name}/abort")
async def abort(
    request: Request, access: Access, _: Change, name: NameInPath, typed: Annotated[str, Form()]
) -> RedirectResponse:
    """Abort a transaction after the user has typed its id."""
    check_typed(typed, name)
    decided = await access.admin.abort_transaction(name)
    command = shlex.join(["fairlead", "transaction", "abort", name])
    return done(
        request, f"/transactions/{segment(name)}", f"Aborted transaction {decided.transaction}.", command
    )
