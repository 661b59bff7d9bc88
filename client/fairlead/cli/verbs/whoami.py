"""`fairlead whoami`: the caller's principal and quotas, and the security mode of the cluster."""

from __future__ import annotations

import msgspec
import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, run
from fairlead_api.bodies.security import WhoAmI


def whoami(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Show the principal of your token, and the security mode of the cluster.

    A table shows the quota limits that apply to you, with their usage.

    Example: fairlead whoami
    """

    async def work() -> WhoAmI:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.whoami()

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    values = msgspec.structs.asdict(found)
    values["groups"] = ", ".join(found.groups) or None
    values["superuser"] = "yes" if found.superuser else "no"
    del values["limits"]
    print_pairs({name.replace("_", " "): value for name, value in values.items()})
    if found.limits:
        typer.echo()
        rows = [
            (each.limit, each.value, f"{each.use:g}", each.subject, "shared" if each.shared else "each")
            for each in found.limits
        ]
        print_rows(["LIMIT", "VALUE", "USE", "SUBJECT", "SCOPE"], rows)
