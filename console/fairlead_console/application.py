"""The composition root: builds the application from pages, access to the cluster and security headers of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fairlead_console.access import AccessPool
from fairlead_console.assets import Assets
from fairlead_console.body_limit import BodyLimit
from fairlead_console.changes import ChangeGuard
from fairlead_console.error_pages import add_error_pages
from fairlead_console.identity.oidc import OidcClient, OidcIssuer
from fairlead_console.identity.sessions import Sessions
from fairlead_console.identity.signed_in import SignedIn
from fairlead_console.page import Renderer
from fairlead_console.pages import PAGES
from fairlead_console.security_headers import SecurityHeaders
from fairlead_console.settings import ConsoleSettings


def application(
    settings: ConsoleSettings, session_key: bytes | None = None, oidc: OidcClient | None = None
) -> FastAPI:
    """Return the web application of a console."""
    sessions = Sessions(session_key)
    pool = AccessPool(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    assets = Assets()
    app = FastAPI(
        title="Fairlead console", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.settings = settings
    app.state.access_pool = pool
    app.state.sessions = sessions
    app.state.oidc = None if oidc is None else OidcIssuer(oidc)
    app.state.change_guard = ChangeGuard()
    app.state.open_tails = set()
    app.state.renderer = Renderer(assets, PAGES)
    app.include_router(assets.router)
    for each in PAGES:
        app.include_router(each.router)
    add_error_pages(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(SignedIn, settings=settings, sessions=sessions)
    app.add_middleware(SecurityHeaders)
    return app
