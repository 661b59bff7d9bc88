"""Search of the logs and stores of every test for tokens and private keys (proof V18).

Tokens are found by their form, so no list of the tokens that tests create is necessary. After each test, the plugin
searches the log files and the coordination stores in the folder of the test, the captured output of the test, which
contains the log lines of brokers in the same process, and the events of `SearchedLogger`. A test that shows a secret
fails. Files that contain secrets by purpose, such as token files, are not searched. The plugin is loaded by
tests/conftest.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

SECRET: Final = re.compile(
    rb"flt_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]{40,}|PRIVATE KEY-----"
)
"""Text of an API token, a signed token or a proof between brokers, or an edge of a private key."""
MARKS: Final = (b"flt_", b"eyJ", b"PRIVATE KEY-----")
"""Fixed parts of the texts that `SECRET` finds."""
SEARCHED: Final = (".log", ".sqlite", ".sqlite-wal")
"""Ends of the names of logs and of coordination stores."""
BYTES_MAX: Final = 8 << 20
"""Searched bytes of each file: the segments of large topics are logs of records, not of programs."""
_logged: list[str] = []
"""Events with a secret, without the secret."""


class SearchedLogger:
    """A logger for brokers in the process of a test, which drops all events without a secret."""

    def msg(self, *arguments: object, **facts: object) -> None:
        """Keep the name of an event that shows a secret."""
        if shows_secret(repr((arguments, facts)).encode()):
            _logged.append(str(facts.get("event")))

    debug = info = warning = error = exception = critical = fatal = log = msg


def shows_secret(content: bytes) -> bool:
    """Return whether a text contains a secret; the search for fixed beginnings is a hundred times faster."""
    return any(mark in content for mark in MARKS) and SECRET.search(content) is not None


def files_with_secrets(folder: Path) -> list[Path]:
    """Return the logs and stores in a folder that contain a secret."""
    found = []
    for parent, _, names in os.walk(folder):
        for file in (Path(parent, name) for name in names if name.endswith(SEARCHED)):
            # A program that the test started may still remove files.
            with suppress(OSError):
                if file.is_file() and shows_secret(_beginning(file)):
                    found.append(file)
    return found


def _beginning(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(BYTES_MAX)


@pytest.fixture(autouse=True)
def shown_tokens(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test with a secret in a log or a store, after the other fixtures of the test have ended."""
    # The folder is created before the fixtures of the test, so that it still exists when they have ended.
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    _logged.clear()
    yield
    assert _logged == [], "events show a secret"
    assert folder is None or files_with_secrets(folder) == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[Any],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test whose captured output and log lines show a secret."""
    report = yield
    if call.when == "teardown" and report.passed:
        shown = [name for name, text in report.sections if shows_secret(text.encode(errors="replace"))]
        if shown:
            report.outcome, report.longrepr = "failed", f"a secret is in: {', '.join(shown)}"
    return report
