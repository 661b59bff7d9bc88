"""Runs the integration tests of kafka-python and franz-go against a broker, and prints a JSON report.

    python tests/kafka_clients/client_suites.py [--suite NAME] [--only EXPRESSION]

The tests are in the source distribution of kafka-python and in the module of franz-go. aiokafka's source distribution
contains no tests. `suite_failures.json` contains a reason for each test that may fail. The exit code is 1 if another
test failed, or if a test in the file passed, so that the file can only become shorter. `make prove PROVE=kafka-suites`
records the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

TESTS: Final = Path(__file__).parents[1]
for part in ("plugins", "plugins/programs", "faults", "etcd"):
    sys.path.insert(0, str(TESTS / part))

from client_programs import cache
from client_steps import ClientMissing
from go_suite import RECORDS, franz_go_results, franz_go_version
from suite_results import Outcome, Result, is_good, report

from broker_process import BrokerProcess
from fairlead import Admin

FOLDER: Final = Path(__file__).parent
FAILURES: Final = FOLDER / "suite_failures.json"
DISTRIBUTION: Final = "kafka-python"
KAFKA_VERSION: Final = "4.3.0"
"""Version of Kafka that the tests expect of the broker."""
RUN_SECONDS_MAX: Final = 1500
CONFIGURATION: Final = {"auto.create.topics.enable": "true", "num.partitions": "4"}
"""Configuration of the brokers that the tests start themselves."""
TEST_SECONDS_MAX: Final = 120


def source() -> Path:
    """Return the unpacked source distribution of the installed version; raise `ClientMissing` if there is none."""
    name = f"{DISTRIBUTION.replace('-', '_')}-{version(DISTRIBUTION)}"
    folder = cache() / name
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=cache()) as partial:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--dest", partial, f"{DISTRIBUTION}=={version(DISTRIBUTION)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"the source distribution of {DISTRIBUTION} cannot be downloaded: {done.stderr[-300:]}"
            raise ClientMissing(message)
        with tarfile.open(Path(partial) / f"{name}.tar.gz") as archive:
            archive.extractall(partial, filter="data")
        (Path(partial) / name).rename(folder)
    return folder


async def configure(url: str) -> None:
    """Set the configuration of the cluster."""
    async with Admin(url) as admin:
        await admin.alter_cluster_config(CONFIGURATION)


def run(folder: Path, address: str, only: str) -> list[ET.Element]:
    """Run the tests in the source distribution against a broker, and return the result of each."""
    with tempfile.TemporaryDirectory() as results:
        written = Path(results) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_brokers", "-p", "no:randomly"]
        command += [f"--timeout={TEST_SECONDS_MAX}", "--timeout-method=signal"]
        command += ["-p", "no:cacheprovider", "-k", only, f"--junit-xml={written}", "test/integration"]
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
            "PYTHONPATH": f"{folder}:{FOLDER / 'python'}",
            "KAFKA_URI": f"kafka://{address}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": str(folder),  # only the existence of this folder is checked
        }
        subprocess.run(
            command, cwd=folder, env=variables, stdout=sys.stderr, timeout=RUN_SECONDS_MAX, check=False
        )
        return list(ET.parse(written).iter("testcase"))


def kafka_python_results(address: str, only: str) -> list[Result]:
    """Run the tests of kafka-python and return their results, without paths of this machine."""
    folder, results = source(), []
    for case in run(folder, address, only):
        name = f"{(case.get('classname') or '').removeprefix('test.integration.')}::{case.get('name')}"
        if (found := case.find("skipped")) is not None:
            results.append(Result(name, Outcome.SKIPPED, (found.get("message") or "").strip()))
        elif (found := case.find("failure")) is not None or (found := case.find("error")) is not None:
            message = (found.get("message") or "").replace(f"{folder}/", "").splitlines()[0][:300]
            results.append(Result(name, Outcome.FAILED, message))
        else:
            results.append(Result(name, Outcome.PASSED))
    return results


SUITES: Final[dict[str, tuple[Callable[[], str], Callable[[str, str], list[Result]]]]] = {
    DISTRIBUTION: (lambda: version(DISTRIBUTION), kafka_python_results),
    "franz-go": (franz_go_version, franz_go_results),
}
"""Functions that return the version of each suite, and the results of its tests."""


def main(arguments: list[str]) -> int:
    """Run the tests, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, action="append", help="suite that is run; by default, all")
    parser.add_argument("--only", default="", help="expression of pytest or Go that selects tests")
    options = parser.parse_args(arguments)
    allowed = json.loads(FAILURES.read_text(encoding="utf-8"))
    reports = []
    for name in options.suite or SUITES:
        its_version, results = SUITES[name]
        with tempfile.TemporaryDirectory() as data:
            broker = BrokerProcess(Path(data) / "broker", arguments=("--kafka-listen", "127.0.0.1:0"))
            broker.start()
            try:
                asyncio.run(configure(broker.url))
                found = results(broker.kafka, options.only)
            finally:
                broker.kill()
        reports.append(report(name, its_version(), found, allowed[name]))
    print(json.dumps({"records_in_a_chain": RECORDS, "suites": reports}, indent=2))
    return int(not all(map(is_good, reports)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
