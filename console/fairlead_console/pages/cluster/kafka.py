"""The Kafka listeners of the brokers: addresses for clients of Kafka's protocol, TLS, open connections."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access
from fairlead_console.page import page

router = APIRouter()


@router.get("/kafka")
async def show(request: Request, access: Access) -> HTMLResponse:
    """Show the Kafka listener of each broker."""
    reports = await access.admin.broker_reports()
    return await page(
        request,
        "kafka/kafka.html",
        title="Kafka",
        access=access,
        refresh_seconds=10,
        reports=reports,
        bootstrap=",".join(each.kafka.address for each in reports if each.kafka is not None),
    )
