"""Page with the counts of the proofs of security and of pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from page_text import code, table

PROOFS: Final = Path(__file__).resolve().parents[2] / "proof"
TEXT: Final = """<!-- Generated from the records in docs/proof by docs/generate/pages.py. -->

# Records of the proofs

`make prove` runs the [long proofs](../explanation/proofs.md) and writes a record of each to `docs/proof/<part>.json`,
with the date, the commit, the machine and all counts. This page shows the counts of security and of pods.
"""
SEARCHES_TEXT: Final = """
## Forged tokens and wrong decisions

`make prove PROVE=access-searches` runs six searches, and each input must have the right outcome:

- `rule-sets`: random ACLs of all kinds. Each decision must equal the decision of a simple program that walks through
  all ACLs. The outcomes count decisions, also by the kind of the resource.
- `acl-texts`: ACLs whose principals and patterns are changed at random places. Each ACL must be refused, or match
  similar names exactly as the simple program says. `allowed` and `denied` count the decisions of accepted ACLs.
- `api-tokens` and `signed-tokens`: valid tokens, changed at random places. Each changed token must be refused, and the
  answer must not tell one refused token from another. The outcome `the same token` counts changes that leave the
  content of a token as it was, and `another form` counts further texts that are not a signed token.
- `headers`: values of `Authorization`, sent to every route. The answer must be 401, unless the value still contains a
  valid token; its caller has the other statuses.
- `certificates`: changed files of certificates, keys and authorities. Each file must be refused, or be usable by the
  TLS libraries of a broker.

"""
SECURITY_TEXT: Final = """
## Security under load

`make prove PROVE=security` runs the long tests of security. In the tests with acknowledged records, clients write and
read all the time; each send or read that fails, after the retries of the SDK, fails the test:

"""
PODS_TEXT: Final = """
## Pods

`make prove PROVE=pods` runs Clusters on real pods, most of them while a producer with `acks=all` writes. `failed` are
records that the producer gave up, and `missing`, `twice`, `misplaced` and `disordered` are acknowledged records that
are not stored as acknowledged:

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    return {
        "proof-records.md": TEXT
        + _searches(_counts("access-searches"))
        + _tests(SECURITY_TEXT, _counts("security").get("figures", {}))
        + _tests(PODS_TEXT, _counts("pods"))
    }


def _counts(proof: str) -> dict[str, Any]:
    """Return the counts in the record of a proof; empty without a record."""
    path = PROOFS / f"{proof}.json"
    counts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["counts"] if path.exists() else {}
    return counts


def _searches(counts: Mapping[str, Any]) -> str:
    rows = [
        [code(name), f"{done:,}", words(counts["outcomes"][name]), words(counts["found"])]
        for name, done in counts["done"].items()
    ]
    return SEARCHES_TEXT + table(["search", "inputs", "outcomes", "wrong"], rows)


def _tests(text: str, figures: Mapping[str, Any]) -> str:
    """Return a section with the counts of each test; nothing without counts."""
    rows = [[name, words(each)] for name, each in figures.items() if isinstance(each, dict)]
    return text + table(["test", "counts"], rows) if rows else ""


def words(value: object) -> str:
    """Return counts as text, with the counts inside a count in parentheses."""
    if isinstance(value, dict):
        return "; ".join(f"{_name(name)} {_inside(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _inside(value: object) -> str:
    return f"({words(value)})" if isinstance(value, dict) else words(value)


def _name(name: str) -> str:
    return code(name) if "/" in name else name.replace("_", " ")
