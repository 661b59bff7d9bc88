"""Runs the integration tests of kafka-python, from its source distribution, against a broker, and prints a JSON report.

    python tests/kafka_clients/client_suites.py [--only EXPRESSION]

`suite_failures.json` contains a reason for each test that may fail. The exit code is 1 if another test failed, or if a
test in the file passed, so that the file can only become shorter. `make prove PROVE=kafka-suites` records the report.
aiokafka's source distribution contains no tests.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

TESTS: Final = Path(__file__).parents[1]
for part in ("plugins", "plugins/programs", "faults", "etcd"):
    sys.path.insert(0, str(TESTS / part))

from client_programs import cache
from client_steps import ClientMissing

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
        report = Path(results) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_brokers", "-p", "no:randomly"]
        command += [f"--timeout={TEST_SECONDS_MAX}", "--timeout-method=signal"]
        command += ["-p", "no:cacheprovider", "-k", only, f"--junit-xml={report}", "test/integration"]
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
        return list(ET.parse(report).iter("testcase"))


def judged(cases: list[ET.Element], allowed: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the report on the results, without paths of this machine.

    `allowed`: reason for each test that may fail. `folder`: folder of the tests.
    """
    passed, skipped, failed = [], {}, {}
    for case in cases:
        name = f"{(case.get('classname') or '').removeprefix('test.integration.')}::{case.get('name')}"
        if (found := case.find("skipped")) is not None:
            skipped[name] = (found.get("message") or "").strip()
        elif (found := case.find("failure")) is not None or (found := case.find("error")) is not None:
            failed[name] = (found.get("message") or "").replace(f"{folder}/", "").splitlines()[0][:300]
        else:
            passed.append(name)
    return {
        "suite": DISTRIBUTION,
        "version": version(DISTRIBUTION),
        "passed": len(passed),
        "skipped": skipped,
        "failed": {name: {"message": text, "reason": allowed.get(name)} for name, text in failed.items()},
        "passed_unexpectedly": sorted(allowed.keys() & set(passed)),
    }


def main(arguments: list[str]) -> int:
    """Run the tests, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="expression of pytest that selects tests")
    options = parser.parse_args(arguments)
    folder = source()
    allowed = json.loads(FAILURES.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as data:
        broker = BrokerProcess(Path(data) / "broker", arguments=("--kafka-listen", "127.0.0.1:0"))
        broker.start()
        try:
            asyncio.run(configure(broker.url))
            report = judged(run(folder, broker.kafka, options.only), allowed, folder)
        finally:
            broker.kill()
    print(json.dumps(report, indent=2))
    unexplained = [name for name, each in report["failed"].items() if each["reason"] is None]
    return int(bool(unexplained or report["passed_unexpectedly"] or not report["passed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
