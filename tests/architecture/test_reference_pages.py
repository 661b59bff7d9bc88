"""The generated reference pages are current."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import checkout
from fairlead import Consumer, Producer

GENERATOR = checkout.ROOT / "docs/generate/pages.py"
RULES = re.compile(r"\b(?:rule|proof)s?\s+((?:[TAZQUCKV]\d{1,2}(?:, | to | and )?)+)")
"""Names of rules and proofs of security in a text; partitions with a quorum have rules with other names."""


@pytest.mark.slow
def test_a_page_that_differs_lacks_or_should_not_exist_is_named(tmp_path: Path) -> None:
    """A page that differs, is missing or should not exist fails the check, which `make check` runs for all pages."""
    pages = checkout.ROOT / "docs/reference"
    shutil.copytree(pages, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics.md").write_text("edited by hand")
    (tmp_path / "problems/disk_full.md").unlink()
    (tmp_path / "problems/no_such_problem.md").write_text("left over")
    checked = subprocess.run(
        [sys.executable, str(GENERATOR), "--check", "--into", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 1
    assert checked.stderr.count("is not current") == 3
    for name in ("metrics.md", "problems/disk_full.md", "problems/no_such_problem.md"):
        assert f"{name} is not current" in checked.stderr


def test_only_bytes_are_counted_in_units_of_1024() -> None:
    """A limit in units of 1024 counts bytes, whereas a limit of requests or connections is a plain number."""
    page = (checkout.ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")]
    # The last cell is the reason, which may contain any number.
    sized = {name for name, *cells, _ in rows if re.search(r"\d [KM]iB", " ".join(cells))}

    assert len(sized) > 10
    assert [name for name in sized if "bytes" not in name.lower()] == []
    assert "iB bytes" not in page


def test_the_page_of_limits_shows_only_recorded_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that the record of the proof lacks leaves out its row, and a table without a row is left out."""
    monkeypatch.syspath_prepend(str(GENERATOR.parent))
    figures = import_module("records.overload_figures")
    flood: dict[str, float] = {"in_flight": 4000, "requests_per_second": 9876, "failures": 0}
    flood["broker_cpu_us_per_request"] = 140
    flood |= {"broker_cpu_share": 0.9, "quiet_p99_ms": 8.1, "beside_p99_ms": 871.2}
    flood |= {"memory_before_mib": 100, "memory_peak_mib": 162}
    killed: dict[str, float] = {
        "brokers": 3,
        "through": 2,
        "offered_share_of_limit": 10.0,
        "admitted_share_of_limit": 0.98,
    }
    killed |= {"seconds_after_kill_of_controller": 10.0}
    counts = {"stranger: flood": flood, "tenant over its quota, controller killed": killed}
    rows = [line for line in figures.strangers(counts).splitlines() if line.startswith("| batches")]
    [tenant] = [line for line in figures.tenants(counts).splitlines() if line.startswith("| 3")]

    assert [row.split(" | ")[1:4] for row in rows] == [["4,000", "refused", "9,876"]]
    assert rows[0].endswith("| 0.14 | 90% | 8 | 871 | 0 | 62 |")
    assert tenant.split(" | ")[1:4] == ["2 of them", "10.0", "0.98"]
    assert "|" not in figures.strangers({}) + figures.tenants({})
    assert figures.attacks({}) + figures.goodput({}) == ""


def test_every_rule_of_security_in_the_code_is_explained() -> None:
    """The page of rules has a row for each rule and proof that code, tests or decisions name, alone or in a range."""
    explained = _explained()
    named: set[str] = set()
    for folder in ("api", "broker", "client", "console", "operator", "spark", "tests", "docs/decisions"):
        for path in (checkout.ROOT / folder).rglob("*.*"):
            if path.suffix in {".py", ".md"} and path != Path(__file__):
                for names in RULES.findall(path.read_text(encoding="utf-8")):
                    named |= _names(names)

    assert all(anchor == name.lower() for anchor, name in explained)
    assert named - {name for _, name in explained} == set()


def test_every_rule_and_proof_of_security_is_named_by_a_test() -> None:
    """Each rule and each proof on the page of security is named by the docstring of a test or of its module.

    A range of rules, such as `A1 to A9`, does not name the rules in between, because it hides rules without a test.
    """
    named: set[str] = set()
    for path in (checkout.ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module) or (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            ):
                text = " ".join((ast.get_docstring(node) or "").split())
                for names in RULES.findall(text):
                    named.update(re.findall(r"[A-Z]\d+", re.sub(r"\w+ to \w+", "", names)))

    assert {name for _, name in _explained()} - named == set()


def _explained() -> list[tuple[str, str]]:
    """Return the anchor and the name of each rule and proof on the page of security."""
    page = (checkout.ROOT / "docs/reference/security-rules.md").read_text(encoding="utf-8")
    return re.findall(r"^\| <a id=\"(\w+)\"></a>`(\w+)` \|", page, re.MULTILINE)


def _names(text: str) -> set[str]:
    """Return the names in a list of rules such as `A11 to A13, Z4`; a range includes the names between its ends."""
    found = set(re.findall(r"[A-Z]\d+", text))
    for letter, first, last in re.findall(r"([A-Z])(\d+) to [A-Z](\d+)", text):
        found |= {f"{letter}{number}" for number in range(int(first), int(last) + 1)}
    return found


def test_no_option_is_shown_with_an_empty_default() -> None:
    """An option without a default has an empty cell, and a default is a word or a value between backquotes."""
    page = (checkout.ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")

    assert "| `` |" not in page


def test_the_page_of_retries_names_arguments_as_clients_take_them() -> None:
    """Each parameter on the page of retries is an argument of the client in the SDK, and has an explanation."""
    page = (checkout.ROOT / "docs/reference/sdk/retries.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    clients = {"Connections": Producer, "Producer": Producer, "Consumer": Consumer}
    unknown, meaningless = [], []
    for part in parts:
        taken = inspect.signature(clients[part.split()[0].rstrip(",")]).parameters
        rows = [row.strip("| ").split(" | ") for row in part.splitlines() if row.startswith("| `")]
        assert len(rows) > 3
        unknown += [row[0] for row in rows if row[0].strip("`") not in taken]
        meaningless += [row[0] for row in rows if len(row) < 3]

    assert (unknown, meaningless) == ([], [])
