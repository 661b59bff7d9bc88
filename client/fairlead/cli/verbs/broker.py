"""`fairlead broker`: inspect, cordon and drain brokers; `broker start` comes with the extra `broker`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_config, print_document, print_done, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, run
from fairlead.errors import BrokerNotFoundError, error_of
from fairlead.health import stuck
from fairlead_api.bodies.metadata import BrokerDescription, Metadata
from fairlead_api.bodies.operations import BrokerReport, RestartPermitAnswer
from fairlead_api.configuration import ConfigEntry
from fairlead_api.problems import ProblemError

app = typer.Typer(no_args_is_help=True, help="Run, inspect, cordon and drain brokers.")
BrokerNumber = Annotated[int, typer.Argument(metavar="BROKER", min=0, help="Id of the broker.")]


@app.callback()
def broker() -> None:
    """Run, inspect, cordon and drain brokers."""


@app.command("list")
def list_brokers(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the brokers, including stopped brokers, and the load of each.

    Example: fairlead broker list --output json
    """

    async def work() -> tuple[list[BrokerDescription], Metadata]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.brokers(), await admin.metadata()

    brokers, metadata = run(work())
    if output is not OutputFormat.TABLE:
        print_document(brokers, output)
        return
    leaders, replicas = _load(metadata)
    rows = [
        (each.id, each.address, each.rack, _state(each), leaders[each.id], replicas[each.id])
        for each in brokers
    ]
    print_rows(["BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS"], rows)


@app.command("reports")
def reports(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Show the disk space and the Kafka listener of each running broker, as reported by the broker.

    Example: fairlead broker reports
    """

    async def work() -> list[BrokerReport]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.broker_reports()

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    rows = [
        (
            each.broker,
            each.disk_total_bytes,
            each.disk_free_bytes,
            None if each.kafka is None else each.kafka.address,
            None if each.kafka is None else each.kafka.connections,
        )
        for each in found
    ]
    print_rows(["BROKER", "DISK BYTES", "FREE BYTES", "KAFKA ADDRESS", "KAFKA CONNECTIONS"], rows)


@app.command("describe")
def describe(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Show a broker, its leaderships and replicas, and all its settings with their sources.

    Example: fairlead broker describe 2
    """

    async def work() -> tuple[BrokerDescription, Metadata, dict[str, ConfigEntry]]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            found = [each for each in await admin.brokers() if each.id == number]
            if not found:
                problem = ProblemError("broker_not_found", f"no broker {number} is registered")
                error = error_of(problem, subject=f"broker {number}")
                assert isinstance(error, BrokerNotFoundError), "the problem has the code of this class"
                raise error
            return found[0], await admin.metadata(), await _config(admin, found[0])

    description, metadata, config = run(work())
    leaders, replicas = _load(metadata)
    if output is not OutputFormat.TABLE:
        document = {"broker": description, "leaders": leaders[number], "replicas": replicas[number]}
        print_document({**document, "config": config}, output)
        return
    print_pairs(
        {
            "broker": description.id,
            "address": description.address,
            "rack": description.rack,
            "state": _state(description),
            "controller": "yes" if metadata.controller == number else "no",
            "leaders": leaders[number],
            "replicas": replicas[number],
        }
    )
    if description.immovable:
        typer.echo(f"warning: {stuck(number, description.immovable)}", err=True)
    typer.echo()
    print_config(config)


@app.command("cordon")
def cordon(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Exclude a broker from new replicas until it is uncordoned.

    Example: fairlead broker cordon 2
    """
    broker = _change(bootstrap, lambda admin: admin.cordon_broker(number))
    print_done(f"broker {number} gets no new replicas", broker, output)


@app.command("uncordon")
def uncordon(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Allow new replicas on a broker again.

    Example: fairlead broker uncordon 2
    """
    broker = _change(bootstrap, lambda admin: admin.uncordon_broker(number))
    print_done(f"broker {number} may get new replicas", broker, output)


@app.command("drain")
def drain(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Move all leaderships and then all replicas off a broker; fairlead partition moves shows the moves.

    Example: fairlead broker drain 2
    """
    drained = _change(bootstrap, lambda admin: admin.drain_broker(number))
    print_done(f"broker {number} is draining", drained, output)
    if drained.immovable:
        typer.echo(f"warning: {stuck(number, drained.immovable)}", err=True)


@app.command("undrain")
def undrain(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Stop the drain of a broker; moves in progress are finished.

    Example: fairlead broker undrain 2
    """
    broker = _change(bootstrap, lambda admin: admin.undrain_broker(number))
    print_done(f"broker {number} is no longer draining", broker, output)


@app.command("request-restart")
def request_restart(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Acquire the cluster's single permit to restart a broker.

    The request is refused if partitions would have too few replicas.

    Example: fairlead broker request-restart 2
    """

    async def work() -> RestartPermitAnswer:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.request_restart(number)

    permit = run(work())
    print_done(f"broker {number} may be restarted within {permit.seconds} s", permit, output)


@app.command("unregister")
def unregister(
    number: BrokerNumber, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Remove a permanently stopped broker from the cluster; the broker must have no replicas.

    Example: fairlead broker unregister 2
    """

    async def work() -> None:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            await admin.unregister_broker(number)

    run(work())
    print_done(f"broker {number} is unregistered", {"broker": number}, output)


async def _config(admin: Admin, described: BrokerDescription) -> dict[str, ConfigEntry]:
    try:
        return await admin.broker_config(described.id)
    except BrokerNotFoundError:
        # The broker is no longer registered and has no settings of its own.
        return {}


def _change(bootstrap: str, call: Callable[[Admin], Awaitable[BrokerDescription]]) -> BrokerDescription:
    async def work() -> BrokerDescription:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await call(admin)

    return run(work())


def _load(metadata: Metadata) -> tuple[Counter[int], Counter[int]]:
    partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    leaders = Counter(partition.leader for partition in partitions if partition.leader is not None)
    return leaders, Counter(replica for partition in partitions for replica in partition.replicas)


def _state(broker: BrokerDescription) -> str:
    """Return the state; `cordoned` is omitted for a draining broker, which never gets new replicas."""
    return "running, cordoned" if broker.cordoned and broker.state == "running" else broker.state
