"""One broker: its settings with their sources; cordon, drain, restart permit, unregister."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Form, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead.errors import BrokerNotFoundError, ClusterError, FixError
from fairlead.health import stuck
from fairlead_api.configuration import KEYS
from fairlead_console.access import Access, ClusterAccess
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.page import page

router = APIRouter()

Verb = Literal["cordon", "uncordon", "drain", "undrain"]
_SENTENCES: Final = {
    "cordon": "Broker {} gets no new replicas.",
    "uncordon": "Broker {} may get new replicas again.",
    "drain": "Leaders and replicas move away from broker {}.",
    "undrain": "No further replicas move away from broker {}.",
}


@router.get("/brokers/{broker}")
async def show(request: Request, access: Access, broker: int) -> HTMLResponse:
    """Show a broker."""
    return await _broker_page(request, access, broker)


@router.post("/brokers/{broker}/settings")
async def set_config(
    request: Request,
    access: Access,
    _: Change,
    broker: int,
    key: Annotated[str, Form()],
    value: Annotated[str, Form()] = "",
) -> Response:
    """Set one setting of a broker, or reset it to its default."""
    value = value.strip()
    try:
        await access.admin.alter_broker_config(broker, {key: value or None})
    except FixError as error:
        return await _broker_page(request, access, broker, error)
    words = ["fairlead", "cluster", "config", "--broker", str(broker)]
    words += ["-c", f"{key}={value}"] if value else ["--unset", key]
    sentence = f"Set {key} to {value}." if value else f"Reset {key} to its default."
    return done(request, f"/brokers/{broker}", sentence, shlex.join(words))


@router.post("/brokers/{broker}/request-restart")
async def request_restart(request: Request, access: Access, _: Change, broker: int) -> RedirectResponse:
    """Acquire the cluster's only permit to restart a broker."""
    permit = await access.admin.request_restart(broker)
    sentence = (
        f"Broker {broker} may be restarted within {permit.seconds} seconds; no other broker gets the permit."
    )
    return done(request, f"/brokers/{broker}", sentence, f"fairlead broker request-restart {broker}")


@router.post("/brokers/{broker}/unregister")
async def unregister(
    request: Request, access: Access, _: Change, broker: int, typed: Annotated[str, Form()]
) -> RedirectResponse:
    """Remove a broker that is permanently gone."""
    check_typed(typed, str(broker))
    await access.admin.unregister_broker(broker)
    await access.observer.refresh()
    return done(request, "/brokers", f"Removed broker {broker}.", f"fairlead broker unregister {broker}")


@router.post("/brokers/{broker}/{verb}")
async def steer(request: Request, access: Access, _: Change, broker: int, verb: Verb) -> RedirectResponse:
    """Cordon, uncordon, drain or undrain a broker."""
    admin = access.admin
    calls = {
        "cordon": admin.cordon_broker,
        "uncordon": admin.uncordon_broker,
        "drain": admin.drain_broker,
        "undrain": admin.undrain_broker,
    }
    await calls[verb](broker)
    await access.observer.refresh()
    return done(
        request, f"/brokers/{broker}", _SENTENCES[verb].format(broker), f"fairlead broker {verb} {broker}"
    )


async def _broker_page(
    request: Request, access: ClusterAccess, broker: int, error: ClusterError | None = None
) -> HTMLResponse:
    picture = await access.observer.picture()
    found = next((each for each in picture.brokers if each.id == broker), None)
    if found is None:
        await access.admin.brokers()  # raises the error if the caller may not list brokers
        raise HTTPException(404)
    config = {}
    # A broker that does not run has no settings to show, but can be removed.
    with suppress(BrokerNotFoundError):
        if broker not in picture.silent:
            config = await access.admin.broker_config(broker)
    return await page(
        request,
        "broker/broker.html",
        title=f"Broker {broker}",
        access=access,
        status=200 if error is None else error.status,
        refresh_seconds=10,
        broker=found,
        is_controller=picture.metadata.controller == broker,
        leaders=picture.leaders[broker],
        replicas=picture.replicas[broker],
        stored=picture.stored.get(broker),
        rate=picture.broker_rates.get(broker, 0),
        byte_rate=picture.broker_byte_rates.get(broker, 0),
        report=picture.reports.get(broker),
        stuck=stuck(broker, found.immovable) if found.immovable else "",
        config=sorted(config.items()),
        keys=KEYS,
        error=error,
    )
