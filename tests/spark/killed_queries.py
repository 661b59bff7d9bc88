"""A program that repeatedly kills drivers or workers of streaming queries and checks their sinks at the end.

The program `query_program.py` reads one topic into Parquet files, into another topic, into a topic with `exactlyOnce`
and into a Delta table while a producer sends records. At random moments, SIGKILL ends the driver (its Python process
and its JVM together) or one of the Python workers (a task, or the reader that plans the source). At the end of a run
the queries read up to the end of the topic. The files, the table and the committed records of the topic with
`exactlyOnce` must contain every record once, and each micro-batch must contain exactly the offsets of its checkpoint.
The other topic must contain every record at least once; the program counts repeated records.

`python killed_queries.py --kills 50 --seed 7` prints a JSON report and exits with 1 if a guarantee was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs", "faults")
)

from broker_process import BrokerProcess
from fairlead.blocking import Admin, Producer
from fairlead_spark.jobs.session import WORKER_START
from process_tree import java_machine, python_workers
from query_judge import Verdict, judge_copy, judge_files, judge_lake, read_topic
from quick_java import quick_java

PROGRAM: Final = Path(__file__).with_name("query_program.py")
BYTECODE: Final = PROGRAM.parents[2] / "build" / "bytecode"
TOPIC: Final = "events"
COPY: Final = "copy"
ONCE: Final = "once"
PARTITIONS: Final = 4
SINKS: Final = ("files", "topic", "once", "lake")
KINDS: Final = ("driver", *("worker",) * 3)
"""Kinds of kills; workers are killed more often because a restarted driver takes ten times as long as a worker to read
again.
"""
EARLY: Final = 0.15
"""Fraction of the driver kills that happen while the driver starts."""
START_SECONDS_MAX: Final = 10.0
ALIVE_SECONDS_MAX: Final = 3.0
"""Maximum time for which queries read before a kill."""
READY_SECONDS_MAX: Final = 240.0
"""Time limit for the start of a driver: ten times the usual start on a busy machine, but shorter than the time limit of
the test, so that a failed test shows the output of the queries.
"""
FINISH_SECONDS_MAX: Final = 900.0
THREADS_SECONDS_MAX: Final = 20.0
END_OF_THREADS: Final = "JNI global ref"
OTHER_LINES_MAX: Final = 3000
LOG_CHARACTERS_MAX: Final = 20_000
PAUSE_SECONDS: Final = 0.1
RECORDS_A_PAUSE: Final = 20


class Feeder:
    """A thread that produces distinct records until `stop` is called."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder")
        self.records = 0
        self.failure: Exception | None = None
        """Error that ended the thread before `stop` was called, after which the queries would wait in vain."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after every record is acknowledged, and raise the error that ended the thread early."""
        self._ended.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._feed()
        except Exception as failure:  # noqa: BLE001 - raised by `stop`
            self.failure = failure

    def _feed(self) -> None:
        with Producer(self._bootstrap) as producer:
            while not self._ended.wait(PAUSE_SECONDS):
                for _ in range(RECORDS_A_PAUSE):
                    producer.send(
                        TOPIC, f"event-{self.records}".encode(), key=str(self.records % 97).encode()
                    )
                    self.records += 1
                producer.flush()


class Driver:
    """One run of the program with the queries, in its own process session."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        environment = dict(os.environ)
        # Without bytecode, every worker would compile its imports, which takes longer than the rest of its run.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
        environment["PYTHONPATH"] = WORKER_START
        environment |= quick_java()
        self.events: Counter[str] = Counter()
        self.said: list[dict[str, Any]] = []
        self.other: deque[str] = deque(maxlen=OTHER_LINES_MAX)
        """Last lines of output that are not events, such as the thread dumps that the JVM prints on SIGQUIT."""
        self._news = threading.Condition()
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(settings)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                if line.startswith("{"):
                    fact = json.loads(line)
                    self.said.append(fact)
                    self.events[fact["event"]] += 1
                else:
                    self.other.append(line)
                    self.events["dumped"] += line.startswith(END_OF_THREADS)
                self._news.notify_all()
        with self._news:
            self.events["ended"] = 1
            self._news.notify_all()

    def wait_for(self, event: str, count: int, seconds: float) -> bool:
        """Wait until the program has printed the event or has exited."""
        with self._news:
            self._news.wait_for(lambda: self.events[event] >= count or self.events["ended"], seconds)
            return self.events[event] >= count

    def threads(self) -> str:
        """Return a thread dump of the JVM; the Python workers write their stacks to the log."""
        pid = java_machine(self._process.pid)
        if pid is None:
            return "no JVM"
        os.kill(pid, signal.SIGQUIT)
        self.wait_for("dumped", self.events["dumped"] + 1, THREADS_SECONDS_MAX)
        return "".join(self.other)

    def last_output(self) -> str:
        """Return the last events and log lines."""
        return f"{self.said[-3:]} {self._log.read_text(errors='replace')[-LOG_CHARACTERS_MAX:]}"

    def workers(self) -> dict[int, str]:
        """Return the running Python workers and the role of each."""
        return python_workers(self._process.pid)

    def kill(self) -> None:
        """Kill the Python driver and the JVM together; the workers notice the loss of their driver."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()


@dataclass(slots=True)
class Report:
    """Counts of the kills and of their effects."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    workers: Counter[str] = field(default_factory=Counter)
    """Number of killed workers by role."""
    kills_while_starting: int = 0
    query_failures: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    records: int = 0
    sinks: dict[str, Verdict] = field(default_factory=dict)
    wrong: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every guarantee was kept."""
        kept = {
            name: verdict.is_at_least_once if name == "topic" else verdict.is_exactly_once
            for name, verdict in self.sinks.items()
        }
        return self.wrong is None and bool(kept) and all(kept.values())

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "seed": self.seed,
            "kills": sum(self.kills.values()),
            "kills_by_kind": dict(sorted(self.kills.items())),
            "killed_workers": dict(sorted(self.workers.items())),
            "kills_while_starting": self.kills_while_starting,
            "lives_of_the_driver": self.lives,
            "queries_started_again": dict(sorted(self.query_failures.items())),
            "records": self.records,
            "sinks": {name: asdict(verdict) for name, verdict in self.sinks.items()},
            "wrong": self.wrong,
        }


class Run:
    """A run of a broker, a feeder and a sequence of drivers."""

    def __init__(self, folder: Path, broker: BrokerProcess, sinks: tuple[str, ...], seed: int) -> None:
        self.report = Report(seed)
        self._folder = folder
        self._broker = broker
        self._sinks = sinks
        self._rng = random.Random(seed)
        self._feeder = Feeder(broker.url)
        self._driver: Driver | None = None

    def run(self, kills: tuple[str, ...]) -> Report:
        """Kill a driver or worker the given number of times, let the queries finish, and check the sinks."""
        bootstrap = self._broker.url
        with Admin(bootstrap) as admin:
            for topic in (TOPIC, COPY, ONCE):
                admin.create_topic(topic, partitions=PARTITIONS)
        feeder = self._feeder
        feeder.start()
        try:
            for kind in kills:
                self._kill(kind)
        finally:
            feeder.stop()
            self._end_driver()
        self.report.records = feeder.records
        if self._finish():
            truth = read_topic(bootstrap, TOPIC)
            assert len(truth) == feeder.records, "every record was acknowledged"
            self._judge(truth)
        return self.report

    def _kill(self, kind: str) -> None:
        early = self._driver is None and kind == "driver" and self._rng.random() < EARLY
        driver = self._living()
        if early:
            driver.wait_for("ended", 1, self._rng.uniform(0.5, START_SECONDS_MAX))
            self.report.kills_while_starting += driver.events["reading"] < len(self._sinks)
        elif not driver.wait_for("reading", len(self._sinks), READY_SECONDS_MAX):
            fed = f"{self._feeder.records} records are fed, failure {self._feeder.failure}"
            message = f"the queries do not read: {fed}; {driver.threads()} {driver.last_output()}"
            raise RuntimeError(message)
        else:
            driver.wait_for("ended", 1, self._rng.uniform(0, ALIVE_SECONDS_MAX))
        if kind == "driver":
            self._end_driver()
        else:
            self._kill_worker(driver)
        self.report.kills[kind] += 1
        sys.stderr.write(f"{self.report.kills.total()} kills: {kind}\n")

    def _kill_worker(self, driver: Driver) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if workers := driver.workers():
                pid = self._rng.choice(list(workers))
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.report.workers[workers[pid]] += 1
                return
        message = "no worker was found"
        raise RuntimeError(message)

    def _living(self, *, finish: bool = False) -> Driver:
        if self._driver is None:
            settings = {
                "bootstrap": self._broker.url,
                "folder": str(self._folder),
                "topic": TOPIC,
                "copy": COPY,
                "once": ONCE,
                "sinks": self._sinks,
                "finish": finish,
            }
            self._driver = Driver(settings, self._folder / "driver.log")
            self.report.lives += 1
        return self._driver

    def _end_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        driver.kill()
        for fact in driver.said:
            if fact["event"] == "restarted":
                self.report.query_failures[fact["sink"]] += 1

    def _finish(self) -> bool:
        driver = self._living(finish=True)
        finished = driver.wait_for("finished", len(self._sinks), FINISH_SECONDS_MAX)
        if not finished:
            self.report.wrong = f"the queries did not finish: {driver.last_output()}"
        self._end_driver()
        return finished

    def _judge(self, truth: dict[tuple[int, int], str]) -> None:
        for sink in self._sinks:
            match sink:
                case "files":
                    self.report.sinks[sink] = judge_files(self._folder, truth)
                case "topic":
                    self.report.sinks[sink] = judge_copy(self._broker.url, COPY, truth)
                case "once":
                    self.report.sinks[sink] = judge_copy(self._broker.url, ONCE, truth, "read_committed")
                case _:
                    self.report.sinks[sink] = judge_lake(self._folder, truth)


def run(folder: Path, kills: tuple[str, ...], seed: int, sinks: tuple[str, ...] = SINKS) -> Report:
    """Run with kills of the given kinds in sequence, with all files in the folder."""
    broker = BrokerProcess(folder / "broker")
    broker.start(READY_SECONDS_MAX)
    try:
        return Run(folder, broker, sinks, seed).run(kills)
    finally:
        broker.stop()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--sinks", default=",".join(SINKS), help="comma-separated")
    parser.add_argument("--keep", action="store_true", help="the folder, and say where it is")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    kinds = tuple(rng.choice(KINDS) for _ in range(arguments.kills))
    folder = Path(tempfile.mkdtemp(prefix="fairlead-queries-"))
    try:
        report = run(folder, kinds, arguments.seed, tuple(arguments.sinks.split(",")))
    finally:
        if arguments.keep:
            sys.stderr.write(f"{folder}\n")
        else:
            shutil.rmtree(folder)
    sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
    return int(not report.passed)


if __name__ == "__main__":
    sys.exit(main())
