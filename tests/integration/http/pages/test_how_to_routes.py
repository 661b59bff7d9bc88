"""The pages with curl commands show every route, parameter, header and form of a body.

Each page has a test that runs it, so that its commands work.
"""

import re
from pathlib import Path

import pytest

from fairlead_api.routes import ROUTES, Listener

HOW_TO = Path(__file__).parents[4] / "docs" / "how-to"
PAGES = ("http.md", "groups.md", "disk-faults.md", "transactions.md")
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ASSIGNED = re.compile(r"^(\w+)=(http://\S+)$", re.MULTILINE)
VERBS = re.compile(r"^for (\w+) in ([a-z ]+); do$", re.MULTILINE)
ADDRESS = {Listener.DATA: "http://127.0.0.1:9520", Listener.OPS: "http://127.0.0.1:9522"}
URL = re.compile(r"http://127\.0\.0\.1:\d+[^\s'\"?]*")
METHOD = re.compile(r"-X ([A-Z]+)")
BODY = re.compile(r"--json|--data-binary| -d '\{")


def commands() -> str:
    """Return all blocks of commands, one command per line, with loops and variables expanded."""
    found = [text for page in PAGES for text in COMMANDS.findall((HOW_TO / page).read_text(encoding="utf-8"))]
    return "\n".join(written_out(text) for text in found)


def written_out(block: str) -> str:
    """Return a block of commands with its loops and address variables expanded."""
    for name, url in ASSIGNED.findall(block):
        block = block.replace(f"${name}", url)
    for name, values in VERBS.findall(block):
        block = "\n".join(block.replace(f"${name}", value) for value in values.split())
    return block.replace("\\\n", " ")


def calls(text: str) -> set[tuple[str, str]]:
    """Return method and address of each curl in the text; a body of several lines belongs to the preceding curl."""
    found = set()
    for command in re.split(r"\bcurl ", text)[1:]:
        url = URL.search(command)
        method = METHOD.search(command)
        if url is not None:
            found.add((method[1] if method else "POST" if BODY.search(command) else "GET", url[0]))
    return found


@pytest.fixture(scope="module")
def shown() -> str:
    """Return every command of the pages."""
    return commands()


@pytest.fixture(scope="module")
def called(shown: str) -> set[tuple[str, str]]:
    """Return every call of the pages."""
    return calls(shown)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_called(route, called: set[tuple[str, str]]) -> None:
    """Every route of a listener is called by a command on some page."""
    path = re.sub(r"\\\{\w+\\\}", "[^/:]+", re.escape(route.path))
    matching = re.compile(re.escape(ADDRESS[route.listener]) + path)

    assert any(method == route.method and matching.fullmatch(url) for method, url in called)


@pytest.mark.parametrize("name", sorted({each.name for route in ROUTES for each in route.query}))
def test_every_query_parameter_is_used(name: str, shown: str) -> None:
    """Every query parameter of a request is used by a command on some page."""
    assert re.search(rf"[?&]{name}=", shown)


@pytest.mark.parametrize("name", sorted({each.name for route in ROUTES for each in route.headers}))
def test_every_header_is_used(name: str, shown: str) -> None:
    """Every header of a request is used by a command on some page."""
    assert re.search(rf"-H ['\"]{name}: ", shown, re.IGNORECASE)
