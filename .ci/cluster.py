"""`make cluster`: runs etcd and three brokers, each as a separate process, until Ctrl-C.

The cluster is meant for experiments, such as killing one of the processes whose ids the program prints. The program
reports which process has ended, and restarts a broker when its number is typed. `make cluster CLUSTER="--help"` prints
the options.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "etcd"))

from etcd_build import EtcdNotBuilt, etcd_binaries, member_command

FAIRLEAD = Path(sys.executable).with_name("fairlead")
STOP_SECONDS = 20.0
HELP = "Kill a broker by its process id, and type its number and Enter to restart it. Ctrl-C stops all processes."

starting: set[asyncio.Task[None]] = set()
"""Tasks that restart brokers."""


def main() -> int:
    """Run the cluster; return the exit code of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument(
        "--data", type=Path, help="folder for the data, which is kept; default: a temporary folder"
    )
    parser.add_argument(
        "--port", type=int, default=9520, help="data port of broker 0; ports of brokers are 10 apart"
    )
    parser.add_argument(
        "--etcd-port", type=int, default=9579, help="client port of etcd; the next port is for its peers"
    )
    parser.add_argument("--lease-seconds", type=int, default=6)
    arguments = parser.parse_args()
    try:
        etcd_binaries()
    except EtcdNotBuilt as error:
        print(f"make cluster: {error}", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        folder = arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(run(arguments, folder.resolve()))


async def run(arguments: argparse.Namespace, folder: Path) -> int:
    """Start all processes, print their addresses, and stop the processes on request."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    etcd_url = f"http://127.0.0.1:{arguments.etcd_port}"
    etcd = await start_etcd(folder / "etcd", etcd_url, f"http://127.0.0.1:{arguments.etcd_port + 1}")
    brokers = [Broker(arguments, folder, etcd_url, number) for number in range(arguments.brokers)]
    watchers: list[asyncio.Task[None]] = []
    try:
        for broker in brokers:
            await broker.start()
        print(f"etcd: {etcd_url} (process {etcd.pid}), files and logs in {folder}", flush=True)
        ready = asyncio.gather(*(broker.announce() for broker in brokers))
        asked = asyncio.ensure_future(stopped.wait())
        waiting: list[asyncio.Future[Any]] = [asked, ready]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and all(ready.result()):
            print(
                f"The cluster is ready, for example: fairlead cluster info --bootstrap http://127.0.0.1:{arguments.port}"
            )
            print(HELP, flush=True)
            watchers += [asyncio.create_task(broker.watch()) for broker in brokers]
            # If standard input is a file or closed, the event loop cannot wait for it.
            with suppress(OSError, ValueError):
                asyncio.get_running_loop().add_reader(sys.stdin, read_number, brokers)
            await stopped.wait()
        ready.cancel()
        return 0 if stopped.is_set() else 1
    finally:
        for watcher in watchers:
            watcher.cancel()
        await end([broker.process for broker in brokers if broker.process is not None])
        await end([etcd])


async def start_etcd(folder: Path, url: str, peer_url: str) -> asyncio.subprocess.Process:
    """Start the only etcd member."""
    return await start(folder.with_suffix(".log"), *member_command(folder, url, peer_url))


class Broker:
    """One broker, which is started, watched, and restarted on request."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, etcd_url: str, number: int) -> None:
        """Create the broker without starting its process."""
        port = arguments.port + 10 * number
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self._started = asyncio.Event()
        self._log = folder / f"broker-{number}.log"
        self._command = [
            str(FAIRLEAD),
            "broker",
            "start",
            f"--id={number}",
            f"--data={folder / f'broker-{number}'}",
            f"--listen=127.0.0.1:{port}",
            f"--peer-listen=127.0.0.1:{port + 1}",
            f"--ops-listen=127.0.0.1:{port + 2}",
            f"--etcd={etcd_url}",
            f"--lease-seconds={arguments.lease_seconds}",
        ]

    async def start(self) -> None:
        """Start the process of the broker, which itself waits for etcd."""
        self.process = await start(self._log, *self._command, "--output=json")
        self._started.set()

    async def announce(self) -> bool:
        """Print the addresses of the broker once it serves; return False if its process ends first."""
        assert self.process is not None, "it was started"
        assert self.process.stdout is not None, "its standard output is a pipe"
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            last = self._log.read_text(errors="replace").splitlines()[-1:]
            print(f"broker {self.number} could not start: {' '.join(last)}", file=sys.stderr, flush=True)
            return False
        [found] = json.loads(line)["brokers"]
        where = f"data {found['data']}, ops {found['ops']} (process {self.process.pid})"
        print(f"broker {self.number}: {where}", flush=True)
        return True

    async def watch(self) -> None:
        """Whenever the process of the broker ends, print the command that starts it, and wait for the next start."""
        while True:
            assert self.process is not None, "it was started"
            code = await self.process.wait()
            self._started.clear()
            print(
                f"broker {self.number} {ended(code)}; to start it again type {self.number} and Enter, or run:"
            )
            print(f"    {shlex.join(self._command)}", flush=True)
            await self._started.wait()
            await self.announce()

    async def start_again(self) -> None:
        """Start the broker unless it is already running."""
        if self.process is not None and self.process.returncode is None:
            print(f"broker {self.number} runs (process {self.process.pid})", flush=True)
            return
        print(f"broker {self.number} is starting; it waits until its previous lease has ended", flush=True)
        await self.start()


def ended(code: int) -> str:
    """Return a description of how a process ended, from its exit code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def read_number(brokers: list[Broker]) -> None:
    """Read a line of standard input, and start the broker whose number was typed."""
    line = sys.stdin.readline()
    if not line:
        # Standard input is closed, or the event loop cannot wait for it.
        asyncio.get_running_loop().remove_reader(sys.stdin)
        return
    chosen = [broker for broker in brokers if str(broker.number) == line.strip()]
    if not chosen:
        print(HELP, flush=True)
    for broker in chosen:
        starting.add(task := asyncio.create_task(broker.start_again()))
        task.add_done_callback(starting.discard)


async def start(log: Path, *command: str) -> asyncio.subprocess.Process:
    """Start a process in its own session, so that Ctrl-C only reaches this program, which stops processes in order."""
    dying_with_us = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with log.open("ab") as said:
        return await asyncio.create_subprocess_exec(
            *dying_with_us,
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )


async def end(processes: list[asyncio.subprocess.Process]) -> None:
    """Terminate processes in order, and kill processes that do not stop."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.gather(*(process.wait() for process in running))
    except TimeoutError:
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()


if __name__ == "__main__":
    sys.exit(main())
