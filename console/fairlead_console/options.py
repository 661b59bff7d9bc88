"""Options of `fairlead console`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", envvar="FAIRLEAD_CONSOLE_LISTEN", help="Address for browsers.")
]
Output = Annotated[
    Literal["table", "json"], typer.Option("--output", help="json: one JSON object on stdout when ready.")
]
UntilEndOfInput = Annotated[
    bool, typer.Option("--until-end-of-input", help="Stop at the end of standard input.", hidden=True)
]
ReadOnly = Annotated[
    bool, typer.Option("--read-only", envvar="FAIRLEAD_CONSOLE_READ_ONLY", help="Refuse every change.")
]
HideRecords = Annotated[
    list[str] | None,
    typer.Option(
        "--hide-records",
        metavar="PATTERN",
        envvar="FAIRLEAD_CONSOLE_HIDE_RECORDS",
        help="Show no records of topics like `payroll.*`; repeatable.",
    ),
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        "--public-url", envvar="FAIRLEAD_CONSOLE_PUBLIC_URL", help="Address for browsers, behind a proxy."
    ),
]
SessionKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--session-key-file",
        envvar="FAIRLEAD_CONSOLE_SESSION_KEY_FILE",
        help="Secret that encrypts sessions; by default, sessions end when the console stops.",
    ),
]
OidcIssuerOption = Annotated[
    str | None,
    typer.Option("--oidc-issuer", envvar="FAIRLEAD_CONSOLE_OIDC_ISSUER", help="Issuer for the sign-in."),
]
OidcClientId = Annotated[
    str, typer.Option("--oidc-client-id", envvar="FAIRLEAD_CONSOLE_OIDC_CLIENT_ID", help="Client id there.")
]
OidcClientSecretFile = Annotated[
    Path | None,
    typer.Option(
        "--oidc-client-secret-file",
        envvar="FAIRLEAD_CONSOLE_OIDC_CLIENT_SECRET_FILE",
        help="Secret of the client, for an issuer that requires one.",
    ),
]
OidcScope = Annotated[
    str, typer.Option("--oidc-scope", envvar="FAIRLEAD_CONSOLE_OIDC_SCOPE", help="Requested scopes.")
]
OidcForward = Annotated[
    Literal["id", "access"],
    typer.Option(
        "--oidc-forward",
        envvar="FAIRLEAD_CONSOLE_OIDC_FORWARD",
        help="Token of the issuer that the console forwards.",
    ),
]
OidcCaFile = Annotated[
    Path | None,
    typer.Option(
        "--oidc-ca-file",
        envvar="FAIRLEAD_CONSOLE_OIDC_CA_FILE",
        help="Authority of the issuer's certificate.",
    ),
]
