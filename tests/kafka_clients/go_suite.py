"""Integration tests of franz-go, which its module contains, against a broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from client_steps import ClientMissing
from suite_results import Outcome, Result

from etcd_build import EtcdNotBuilt, go

FOLDER: Final = Path(__file__).parent / "go"
MODULE: Final = "github.com/twmb/franz-go"
RECORDS: Final = 20_000
"""Number of records in each chain of consumers; the tests' own default is 500,000."""
RUN_SECONDS_MAX: Final = 1200
BROKER_CALLS: Final = ("newTestClient(", "tmpTopic(", "newTestConsumer(")
"""Calls in the tests that need a broker; the other tests of the package test only the client."""
_TEST: Final = re.compile(r"^func (Test\w+)\(.*?^}", re.MULTILINE | re.DOTALL)
_OUTCOMES: Final = {"pass": Outcome.PASSED, "skip": Outcome.SKIPPED, "fail": Outcome.FAILED}
_MESSAGE: Final = re.compile(r"\s*\w+\.go:\d+: (.+)")


def franz_go_version() -> str:
    """Return the version of franz-go in `go.mod`."""
    found = re.search(rf"^\t{re.escape(MODULE)} v(\S+)$", (FOLDER / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "franz-go is in go.mod"
    return found[1]


def franz_go_results(address: str, only: str) -> list[Result]:
    """Run the tests that need a broker, or those with a name that matches `only`; return their results."""
    try:
        program = go()
    except EtcdNotBuilt as error:
        raise ClientMissing(str(error)) from error
    names = only or f"^({'|'.join(_broker_tests(program))})$"
    command = [program, "test", "-json", "-count=1", f"-timeout={RUN_SECONDS_MAX}s", "-run", names]
    variables = {
        **os.environ,
        "KGO_SEEDS": address,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    done = subprocess.run(
        [*command, f"{MODULE}/pkg/kgo"],
        cwd=FOLDER,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        timeout=RUN_SECONDS_MAX + 600,
        check=False,
    )
    return _results(done.stdout)


def _broker_tests(program: str) -> list[str]:
    """Return the names of the tests that need a broker."""
    listed = subprocess.run(
        [program, "list", "-f", "{{.Dir}}", f"{MODULE}/pkg/kgo"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        message = f"franz-go cannot be downloaded: {listed.stderr[-300:]}"
        raise ClientMissing(message)
    found: list[str] = []
    for file in sorted(Path(listed.stdout.strip()).glob("*_test.go")):
        tests = _TEST.finditer(file.read_text())
        found += [test[1] for test in tests if any(call in test[0] for call in BROKER_CALLS)]
    return found


def _results(output: str) -> list[Result]:
    """Return the results in the JSON lines of `go test`; a test with the outcome of one of its subtests is left out."""
    outcomes: dict[str, Outcome] = {}
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        event = json.loads(line)
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            lines[name] += [found[1] for found in [_MESSAGE.match(event["Output"])] if found]
        elif event["Action"] in _OUTCOMES:
            outcomes[name] = _OUTCOMES[event["Action"]]
    return [
        Result(
            name, outcome, "" if outcome is Outcome.PASSED else next(iter(lines[name]), "no message")[:300]
        )
        for name, outcome in outcomes.items()
        if not any(part.startswith(f"{name}/") and outcomes[part] is outcome for part in outcomes)
    ]
