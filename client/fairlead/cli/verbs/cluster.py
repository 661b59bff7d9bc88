"""`fairlead cluster`: the brokers, the health and the configuration of the cluster."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from fairlead import Admin
from fairlead.cli.config_values import ConfigOption, UnsetOption, changes
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import ids_of, print_config, print_document, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, run
from fairlead.health import Health, health_of, stuck
from fairlead_api.bodies.metadata import BrokerDescription, ClusterDescription, Metadata
from fairlead_api.configuration import ConfigEntry

app = typer.Typer(no_args_is_help=True, help="Inspect and configure the cluster.")


@app.callback()
def cluster() -> None:
    """Inspect and configure the cluster."""


@app.command("info")
def info(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Show the cluster's id, its controller and its brokers.

    Example: fairlead cluster info --bootstrap http://127.0.0.1:9520
    """

    async def work() -> ClusterDescription:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.cluster()

    description = run(work())
    if output is not OutputFormat.TABLE:
        print_document(description, output)
        return
    print_pairs(
        {"cluster": description.cluster, "id": description.cluster_id, "controller": description.controller}
    )
    typer.echo()
    brokers = [(broker.id, broker.address, broker.rack, broker.state) for broker in description.brokers]
    print_rows(["BROKER", "ADDRESS", "RACK", "STATE"], brokers)


@app.command("health")
def health(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Show partitions that lack a leader or replicas, and other problems; exit with 1 unless the cluster is healthy.

    Example: fairlead cluster health
    """

    async def work() -> tuple[Metadata, list[BrokerDescription]]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.metadata(), await admin.brokers()

    found = health_of(*run(work()))
    if output is not OutputFormat.TABLE:
        print_document(found, output)
    else:
        _print_health(found)
    if not found.healthy:
        raise typer.Exit(ExitCode.FAILED)


def _print_health(found: Health) -> None:
    lists = {"ailing", "drains", "healthy"}
    counts = {name: value for name, value in msgspec.structs.asdict(found).items() if name not in lists}
    print_pairs(
        {
            name.replace("_", " "): ids_of(value) if isinstance(value, list) else value
            for name, value in counts.items()
        }
    )
    if found.ailing:
        typer.echo()
        rows = [
            (
                each.topic,
                each.partition,
                each.leader,
                f"{each.in_sync} of {each.min_isr}",
                ids_of(each.missing),
                ids_of(each.offline),
            )
            for each in found.ailing
        ]
        print_rows(["TOPIC", "PARTITION", "LEADER", "IN SYNC", "NOT IN SYNC", "OFFLINE"], rows)
    for drain in found.drains:
        if drain.immovable:
            typer.echo(f"warning: {stuck(drain.broker, drain.immovable)}", err=True)


@app.command("config")
def config(
    settings: ConfigOption = None,
    unset: UnsetOption = None,
    broker: Annotated[
        int | None,
        typer.Option("--broker", min=0, help="Settings for this broker instead of the whole cluster."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Apply the changes given by -c and --unset, if any, then show every setting of the cluster with its source.

    Example: fairlead cluster config -c num.partitions=6 --unset retention.ms
    """
    patch = changes(settings, unset)

    async def work() -> dict[str, ConfigEntry]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            if broker is None:
                return await (admin.alter_cluster_config(patch) if patch else admin.cluster_config())
            return await (admin.alter_broker_config(broker, patch) if patch else admin.broker_config(broker))

    entries = run(work())
    if output is OutputFormat.TABLE:
        print_config(entries)
    else:
        print_document(entries, output)
