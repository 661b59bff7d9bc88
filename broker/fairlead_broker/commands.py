"""Commands that run and maintain brokers: `broker start`, `broker prepare-stop`, `dev up`, `cluster move-coordination`.

The commands are entry points in the group `fairlead.commands`. The command line of the base install finds the commands
in this group if the extra `broker` is installed; without the extra, the import of uvloop at the top of this module
fails. Modules that are slow to import are imported when a command runs.

The module is a single file because the commands share their options.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer
import uvloop

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import LocalCluster, RunningBroker

USAGE_EXIT = 2
FAILED_EXIT = 1
SERVING_THRESHOLDS: Final = gc.get_threshold()
STARTING_THRESHOLDS: Final = (50_000, 20, 100)
"""Garbage collection thresholds during a start. Nearly all objects that a start creates live until the process
ends, so collections free nothing. With thousands of topics, the default thresholds would cost a fifth of the processor
time of a start."""
_ANY_PORT = "127.0.0.1:0"
_STORE = "coordination.sqlite"
_FOLDER = "broker-"
_CONSOLE_DISTANCE = 60
"""Distance from the first broker's port to the console's port: 9520 and 9580."""
_SECURED_FOLDER = "security"
"""Folder with the certificates and the token of a cluster that was started with --secure."""

ConfigFile = Annotated[
    Path | None, typer.Option("--config", envvar="FAIRLEAD_CONFIG", help="Settings in TOML or YAML.")
]
Cluster = Annotated[str | None, typer.Option(help="Name of the cluster.", show_default="fairlead")]
Id = Annotated[int | None, typer.Option("--id", help="Broker id, unique in the cluster.", show_default="0")]
Data = Annotated[Path | None, typer.Option(help="Data directory.", show_default="fairlead-data")]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="[SCHEME://]HOST:PORT,...", help="Addresses for clients.", show_default="127.0.0.1:9520"
    ),
]
PeerListen = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for other brokers.", show_default="127.0.0.1:9521"),
]
OpsListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Address for health checks and metrics.", show_default="127.0.0.1:9522"
    ),
]
KafkaListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address for clients of Kafka's protocol, with TLS if --tls is given; or plaintext://, ssl://.",
    ),
]
KafkaAdvertise = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address advertised to clients of Kafka's protocol.")
]
Tls = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with tls.crt, tls.key and ca.crt: serve clients with TLS."),
]
PeerTlsFolder = Annotated[
    Path | None,
    typer.Option(
        "--peer-tls",
        metavar="DIR",
        help="Folder with tls.crt, tls.key and ca.crt for calls between brokers.",
        show_default="--tls",
    ),
]
ClientCa = Annotated[
    Path | None,
    typer.Option(help="PEM file: clients need a certificate of one of these authorities."),
]
TlsMin = Annotated[
    Literal["1.2", "1.3"] | None,
    typer.Option(help="Lowest TLS version that clients may use.", show_default="1.3"),
]
AdvertiseTls = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address advertised to clients that use TLS.")
]
Advertise = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address advertised to clients.")]
PeerAdvertise = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address advertised to brokers.")
]
Rack = Annotated[str | None, typer.Option(help="Rack or zone of this broker.")]
Etcd = Annotated[
    str | None,
    typer.Option(metavar="URL,URL", help="URLs of etcd's members; without them, coordination is embedded."),
]
EtcdCa = Annotated[
    Path | None, typer.Option(help="Certificate of the authority that signs etcd's certificates, in PEM.")
]
EtcdCert = Annotated[
    Path | None, typer.Option(help="Certificate of the broker for etcd, in PEM; used with --etcd-key.")
]
EtcdKey = Annotated[Path | None, typer.Option(help="Key of --etcd-cert.")]
EtcdUser = Annotated[
    str | None, typer.Option(help="Name of an etcd user; FAIRLEAD_ETCD_PASSWORD sets the password.")
]
LeaseSeconds = Annotated[
    int | None,
    typer.Option(
        help="Seconds without a lease renewal after which other brokers take over.", show_default="6"
    ),
]
Security = Annotated[
    Literal["open", "observe", "enforce"] | None,
    typer.Option(
        help="Least strict security mode of this broker; required on addresses other than loopback.",
        show_default="open",
    ),
]
AllowPlaintext = Annotated[
    bool | None,
    typer.Option("--allow-plaintext", help="Allow --security enforce without TLS behind a mesh or a proxy."),
]
Superusers = Annotated[
    str | None,
    typer.Option(metavar="P,P", help="Principals that are allowed everything, before any ACL."),
]
AdminTokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token of user:admin; created with a new token if it is missing."),
]
MetricsAccess = Annotated[
    Literal["open", "token"] | None,
    typer.Option(
        help="token: /metrics needs the token of a caller that may describe the cluster.",
        show_default="token with --security enforce on addresses other than loopback, else open",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="HOST,HOST",
        help="Further host names by which clients may call a broker on a loopback address.",
    ),
]
Console = Annotated[
    bool | None,
    typer.Option(
        "--console/--no-console",
        help="Also start the console, 60 ports above the first broker.",
        show_default="--console, unless --secure or --output json is given",
    ),
]
Output = Annotated[
    Literal["table", "json"], typer.Option("--output", help="json: one JSON object on stdout when ready.")
]


def broker_start(
    config: ConfigFile = None,
    cluster: Cluster = None,
    broker_id: Id = None,
    data: Data = None,
    listen: Listen = None,
    peer_listen: PeerListen = None,
    ops_listen: OpsListen = None,
    kafka_listen: KafkaListen = None,
    kafka_advertise: KafkaAdvertise = None,
    tls: Tls = None,
    peer_tls: PeerTlsFolder = None,
    client_ca: ClientCa = None,
    tls_min: TlsMin = None,
    advertise: Advertise = None,
    advertise_tls: AdvertiseTls = None,
    peer_advertise: PeerAdvertise = None,
    rack: Rack = None,
    etcd: Etcd = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    etcd_user: EtcdUser = None,
    lease_seconds: LeaseSeconds = None,
    security: Security = None,
    superusers: Superusers = None,
    admin_token_file: AdminTokenFile = None,
    allow_plaintext: AllowPlaintext = None,
    metrics_access: MetricsAccess = None,
    hosts: Hosts = None,
    output: Output = "table",
) -> None:
    """Start one broker. Every option can also be set by a variable: --data by FAIRLEAD_DATA.

    Example: fairlead broker start --data /var/lib/fairlead

    Example: fairlead broker start --config broker.toml --id 1 --etcd http://etcd.example:2379
    """
    options = dict(locals())
    # Every other option has the name of its setting.
    flags = {name: value for name, value in options.items() if name not in ("broker_id", "config", "output")}
    flags["id"] = broker_id
    settings = _check_etcd(_settings(flags, config))
    _run([settings], None, output)


def broker_prepare_stop(
    seconds: Annotated[float, typer.Option(min=0, help="Maximum number of seconds to wait.")] = 90.0,
    config: ConfigFile = None,
    broker_id: Id = None,
    listen: Listen = None,
    tls: Tls = None,
) -> None:
    """Wait until the cluster can run without this broker: the preStop hook of a pod.

    Reads the same variables and file as the broker of the pod and the token in FAIRLEAD_TOKEN_FILE, requests the
    cluster's only restart permit from the broker, and reports the result on stderr. Always exits with 0, so that a
    stop is never delayed further.

    Example: fairlead broker prepare-stop --seconds 60
    """
    from fairlead_broker.clock import SystemClock
    from fairlead_broker.stop_preparation import StopPreparation

    try:
        settings = _settings({"id": broker_id, "listen": listen, "tls": tls}, config)
    except typer.Exit:
        # The error in the settings has been printed. No broker can be running with invalid settings.
        return
    if not settings.etcd_endpoints:
        typer.echo(f"fairlead: broker {settings.id} is alone: nothing to wait for", err=True)
        return

    def report(line: str) -> None:
        typer.echo(f"fairlead: {line}", err=True)

    # No event announces when to ask the broker for the restart permit again.
    listens = settings.data_listens
    address = next((each for each in listens if each.scheme == "http"), listens[0])
    preparation = StopPreparation(
        settings.id,
        address,
        SystemClock(),
        time.sleep,  # noqa: TID251 - the command runs without an event loop
        report,
        settings.tls,
        Path(token_file) if (token_file := os.environ.get("FAIRLEAD_TOKEN_FILE")) else None,
        settings.peer_tls,
    )
    preparation.run(seconds)


def dev_up(
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers in the cluster.")] = 1,
    data: Annotated[
        Path | None, typer.Option(help="Data directory; the default is a temporary directory.")
    ] = None,
    listen: Listen = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Serve with TLS, and refuse calls that no ACL allows.")
    ] = False,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve clients of Kafka's protocol, too, beginning at this address."
        ),
    ] = None,
    console: Console = None,
    output: Output = "table",
) -> None:
    """Start a whole local cluster in this process. Producing to an unknown topic creates it.

    With --secure, certificates and the token of an administrator are created in the data directory. The console needs
    the extra `console`.

    Example: fairlead dev up

    Example: fairlead dev up --brokers 3 --data fairlead-data

    Example: fairlead dev up --secure --data fairlead-data

    Example: fairlead dev up --kafka 127.0.0.1:9092
    """
    with ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        _check_brokers_of(data, brokers)
        # A single broker uses the directory itself, as `broker start` does. Each of several brokers uses its own folder
        # in the directory.
        folders = [data] if brokers == 1 else [data / f"{_FOLDER}{number}" for number in range(brokers)]
        own = dict(_secured(data) if secure else {})
        first = _local(0, folders[0], listen, _ANY_PORT if listen else None, {**own, "kafka_listen": kafka})
        # The ports of the brokers are 10 apart and do not change, so that clients find the same brokers after a
        # restart.
        settings = [first] + [
            _local(
                number,
                folder,
                _beside(first.listen[0], 10 * number),
                _ANY_PORT,
                {**own, "kafka_listen": first.kafka_listen and _beside(first.kafka_listen, number)},
            )
            for number, folder in enumerate(folders[1:], start=1)
        ]
        is_shown = console or (console is None and output == "table" and not secure)
        place = _beside(first.listen[0], max(_CONSOLE_DISTANCE, 10 * brokers)) if is_shown else None
        _run(settings, None if brokers == 1 else data / _STORE, output, is_secured=secure, console=place)


def cluster_move_coordination(
    source: Annotated[
        Path,
        typer.Option("--from", metavar="DIR", help="Data directory of the broker, which must be stopped."),
    ],
    etcd: Annotated[str, typer.Option(metavar="URL,URL", help="URLs of etcd's members.")],
    cluster: Cluster = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    etcd_user: EtcdUser = None,
) -> None:
    """Move the coordination of a single broker from its data directory to etcd.

    Records are not moved. The command can be repeated until it succeeds. Start the broker with --etcd afterwards.

    Example: fairlead cluster move-coordination --from /var/lib/fairlead --etcd http://etcd.example:2379
    """
    flags = {
        "data": source,
        "cluster": cluster,
        "etcd": etcd,
        "etcd_ca": etcd_ca,
        "etcd_cert": etcd_cert,
        "etcd_key": etcd_key,
        "etcd_user": etcd_user,
    }
    settings = _settings(flags, None)
    _check_etcd(settings)
    code = uvloop.run(_move(settings))
    if code:
        raise typer.Exit(code)


async def _move(settings: BrokerSettings) -> int:
    from fairlead_broker.coordination.protocol import CoordinationError
    from fairlead_broker.wiring.start import move_coordination

    try:
        moved = await move_coordination(settings)
    except CoordinationError as error:
        typer.echo(f"fairlead: coordination was not moved: {error}", err=True)
        return FAILED_EXIT
    done = "was already moved" if moved.already else f"moved: {moved.keys} keys"
    typer.echo(
        f"coordination of cluster {settings.cluster} ({moved.cluster_id}) {done}; start the broker with "
        f"--data {settings.data} --etcd {settings.etcd}"
    )
    return 0


def _secured(data: Path) -> dict[str, Any]:
    """Make certificates for this machine, and return the settings of a secured cluster with an administrator."""
    from fairlead_broker.certificates.local import local_certificates
    from fairlead_broker.clock import SystemClock

    folder = data.absolute() / _SECURED_FOLDER
    certificates = local_certificates(folder, SystemClock().now_us())
    return {
        "tls": certificates,
        "security": "enforce",
        "admin_token_file": folder / "admin.token",
    }


def _local(
    number: int, folder: Path, listen: str | None, ops_listen: str | None, security: dict[str, Any]
) -> BrokerSettings:
    """Return the settings for one broker of a local cluster."""
    flags: dict[str, Any] = {
        "id": number,
        "data": folder,
        "listen": listen,
        # Only the address for clients has a fixed port. The operating system chooses the ports of the other listeners.
        "peer_listen": _ANY_PORT,
        "ops_listen": ops_listen,
        "config_values": {"auto.create.topics.enable": True},
        **security,
    }
    return _settings(flags, None)


def _beside(first: Endpoint, distance: int) -> str:
    """Return an address whose port is `distance` above the port of another address. Port 0 is not changed."""
    from fairlead_broker.settings import Endpoint

    return str(Endpoint(first.host, first.port + distance if first.port else 0))


def _check_brokers_of(data: Path, brokers: int) -> None:
    """Exit if the directory belongs to a cluster with more brokers, or to a single broker that was started alone."""
    made_with = len(list(data.glob(f"{_FOLDER}[0-9]*"))) if (data / _STORE).exists() else 0
    if (data / ".fairlead").exists():
        if brokers > 1:
            _refuse(f"{data} is the directory of one broker; use another --data for a cluster of {brokers}")
    elif made_with > brokers:
        _refuse(f"{data} contains the records of {made_with} brokers; start it with --brokers {made_with}")


def _check_etcd(settings: BrokerSettings) -> BrokerSettings:
    """Return the settings, or exit with code 2 if the etcd options are not valid."""
    from fairlead_broker.runtime.lifecycle.coordination_access import etcd_options

    try:
        etcd_options(settings)
    except ValueError as error:
        _refuse(str(error))
    return settings


def _settings(flags: dict[str, Any], config: Path | None) -> BrokerSettings:
    """Build the settings, or print the error of each invalid setting and exit with code 2."""
    from pydantic import ValidationError

    from fairlead_broker.settings import BrokerSettings

    try:
        return BrokerSettings.load(flags, config)
    except ValidationError as error:
        wrong = (
            f"{_given_as(each['loc'], flags, config)}{_wrong_with(each)}"
            for each in error.errors(include_url=False, include_context=False)
        )
        _refuse("; ".join(wrong))
    except (OSError, ValueError) as error:
        _refuse(f"--config: {error}")


def _given_as(place: tuple[int | str, ...], flags: dict[str, Any], config: Path | None) -> str:
    """Return the flag, variable or file key from which a setting comes, followed by a colon."""
    if not place:
        return ""
    name = ".".join(map(str, place))
    # The most specific name is tried first, because a variable for all limits contains every limit as JSON.
    depths = range(len(place), 0, -1)
    variables = ["FAIRLEAD_" + "__".join(map(str, place[:depth])).upper() for depth in depths]
    variable = next((each for each in variables if each in os.environ), None)
    if flags.get(str(place[0])) is None:
        if variable is not None:
            return f"{variable}: " if variable == variables[0] else f"{name} in {variable}: "
        if config is not None:
            return f"{name} in {config}: "
    return f"--{name.replace('_', '-')}: "


def _wrong_with(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "no such setting, see `fairlead broker start --help` and the page on a broker's settings"
    return error["msg"].removeprefix("Value error, ")


def _run(
    brokers: list[BrokerSettings],
    store: Path | None,
    output: str,
    *,
    is_secured: bool = False,
    console: str | None = None,
) -> None:
    import structlog

    from fairlead_api.process_memory import keep_freed_memory
    from fairlead_broker.server.http.request_tracing import set_up_export
    from fairlead_broker.telemetry import set_up_logging

    keep_freed_memory()
    _raise_descriptor_limit()
    # The imported modules live until the process ends. The command line pauses collections during the imports.
    gc.freeze()
    gc.set_threshold(*STARTING_THRESHOLDS)
    gc.enable()
    set_up_logging(brokers[0].log_format, brokers[0].log_level)
    set_up_export(structlog.get_logger("fairlead"))
    code = uvloop.run(_serve(brokers, store, output, is_secured=is_secured, console=console))
    if code:
        raise typer.Exit(code)


def _raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard limit: the usual soft limit of 1,024 exists only for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    brokers: list[BrokerSettings], store: Path | None, output: str, *, is_secured: bool, console: str | None
) -> int:
    """Serve until SIGTERM, SIGINT or a failure; return the exit code."""
    from fairlead_broker.certificates.material import MaterialRefused
    from fairlead_broker.coordination.protocol import CoordinationError
    from fairlead_broker.log import LogError
    from fairlead_broker.wiring.security import SecurityRefused

    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stopped)
    # The start runs in a separate task, so that a signal can interrupt a long recovery.
    starting = loop.create_task(_start(brokers, store), name="start")
    await _either(stopped, starting)
    if not starting.done():
        starting.cancel()
        await _either(starting)
    try:
        running = await starting
    except asyncio.CancelledError:
        typer.echo("fairlead: stopped before the broker was ready", err=True)
        return 0
    except MaterialRefused as error:
        typer.echo(f"fairlead: the broker cannot use its certificate: {error}", err=True)
        return USAGE_EXIT
    except SecurityRefused as error:
        typer.echo(f"fairlead: the broker cannot use its settings of security: {error}", err=True)
        return USAGE_EXIT
    except (LogError, CoordinationError, OSError) as error:
        typer.echo(f"fairlead: the broker cannot start: {error}", err=True)
        return FAILED_EXIT
    # Objects that were created during startup live until the process ends. Each full garbage collection would traverse
    # all startup objects, block the event loop for tens of milliseconds, and free nothing.
    gc.freeze()
    gc.set_threshold(*SERVING_THRESHOLDS)
    if any(settings.tls or settings.peer_tls for settings in brokers):
        loop.add_signal_handler(signal.SIGHUP, running.look_at_certificates)
    failing = loop.create_task(running.wait_failed(), name="failure")
    try:
        async with AsyncExitStack() as stack:
            if output == "table":
                _announce(running.brokers, brokers, output, is_secured=is_secured)
            # The console starts in a separate task, so that a signal can interrupt its start.
            opening = loop.create_task(_console(stack, running.brokers[0], console), name="console")
            await _either(stopped, failing, opening)
            if not opening.done():
                opening.cancel()
                await _either(opening)
            elif output == "json":
                _announce(running.brokers, brokers, output, is_secured=is_secured, console=opening.result())
            elif opening.result() is not None:
                typer.echo(f"console: {opening.result()}")
            await _either(stopped, failing)
    finally:
        await running.stop()
    return _ended(failing)


def _ended(failing: asyncio.Task[BaseException]) -> int:
    """Report the failure of a broker, if there was one; return the exit code."""
    import structlog

    if failing.done():
        failure = failing.result()
        structlog.get_logger("fairlead").error("broker failed", reason=str(failure), exc_info=failure)
        typer.echo(f"fairlead: the broker failed: {type(failure).__name__}: {failure}", err=True)
        return FAILED_EXIT
    failing.cancel()
    return 0


async def _console(stack: AsyncExitStack, broker: RunningBroker, listen: str | None) -> str | None:
    """Start the console and return its address, or None if it cannot start or was not requested."""
    from fairlead_broker.console_process import is_installed, running_console
    from fairlead_broker.wiring.start import data_url

    if listen is None:
        return None
    if not is_installed():
        typer.echo("console: not installed; install it with: pip install 'fairlead[console]'", err=True)
        return None
    return await stack.enter_async_context(running_console(data_url(broker.addresses), listen))


async def _start(brokers: list[BrokerSettings], store: Path | None) -> RunningBroker | LocalCluster:
    from fairlead_broker.wiring.start import start_broker, start_local_cluster

    if store is None:
        [settings] = brokers
        return await start_broker(settings)
    store.parent.mkdir(parents=True, exist_ok=True)
    return await start_local_cluster(brokers, store)


async def _either(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done; the others continue."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _resolve(stopped: asyncio.Future[None]) -> None:
    if not stopped.done():
        stopped.set_result(None)


def _announce(
    running: Sequence[RunningBroker],
    brokers: list[BrokerSettings],
    output: str,
    *,
    is_secured: bool,
    console: str | None = None,
) -> None:
    """Announce that all brokers serve: print exactly one JSON object, or human-readable lines."""
    from fairlead_broker.wiring.start import data_url

    found = [
        {
            "id": settings.id,
            "data": data_url(broker.addresses),
            "ops": f"{settings.listeners.ops.scheme}://{broker.addresses.ops}",
            **({} if broker.addresses.kafka is None else {"kafka": broker.addresses.kafka}),
        }
        for broker, settings in zip(running, brokers, strict=True)
    ]
    cluster, tls = brokers[0].cluster, brokers[0].tls
    files = {}
    if is_secured and tls is not None:
        files = {"ca_file": str(tls / "ca.crt"), "token_file": str(brokers[0].admin_token_file)}
    if output == "json":
        document = {"cluster_id": running[0].broker.entry.cluster.cluster_id, "brokers": found, **files}
        if console is not None:
            document["console"] = console
        typer.echo(json.dumps(document))
        return
    if len(found) == 1:
        [each] = found
        where = f"{_addresses(each)}, cluster {cluster}, files in {brokers[0].data}"
        typer.echo(f"fairlead is ready: {where}")
    else:
        typer.echo(f"fairlead is ready: cluster {cluster}, files in {brokers[0].data.parent}")
        for each in found:
            typer.echo(f"  broker {each['id']}: {_addresses(each)}")
    if files:
        words = ["fairlead", "profile", "create", "dev", "--bootstrap", str(found[0]["data"])]
        words += ["--ca-file", files["ca_file"], "--token-file", files["token_file"]]
        typer.echo(f"configure your commands: {shlex.join(words)} && fairlead profile use dev")


def _addresses(found: dict[str, Any]) -> str:
    """Return the addresses of a broker's listeners as one line."""
    return ", ".join(f"{name} {found[name]}" for name in ("data", "kafka", "ops") if name in found)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"fairlead: {message}", err=True)
    raise typer.Exit(USAGE_EXIT)
