"""The page of a problem: its meaning and the remedy, from the catalogue of problems."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse

from fairlead_api.problems import CATALOGUE
from fairlead_console.page import page

router = APIRouter()


@router.get("/problems/{code}")
async def show(request: Request, code: str) -> HTMLResponse:
    """Show a problem of the catalogue."""
    definition = CATALOGUE.get(code)
    if definition is None:
        raise HTTPException(404)
    return await page(request, "problem/definition.html", title=definition.title, definition=definition)
