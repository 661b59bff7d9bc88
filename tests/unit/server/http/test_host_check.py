"""Requests that a broker refuses because a web page of another site may have sent them."""

from __future__ import annotations

import pytest

from fairlead_api.problems import ProblemError
from fairlead_api.routes import route
from fairlead_broker.server.http.application import HostCheck

READ, WRITE = route("list_topics"), route("create_topic")
ANY_NAME = HostCheck(["https://shop.example"], None)
CHECK = HostCheck(["https://shop.example"], ["log.example"])


def allowed(check: HostCheck, called: object, **headers: str) -> bool:
    """Return whether a call with the given headers is allowed; an underscore stands for a hyphen."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        check.check(called, named)  # type: ignore[arg-type]
    except ProblemError as problem:
        if problem.code != "forbidden":
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:9520", True),
        ("localhost", True),
        ("LOCALHOST:9520", True),
        ("[::1]:9520", True),
        ("192.0.2.7:80", True),
        ("log.example:9520", True),
        ("page.example:9520", False),
        ("localhost.page.example", False),
        ("127.0.0.1.page.example", False),
        ("", False),
    ],
)
def test_a_broker_answers_to_its_own_names(host: str, own: bool) -> None:
    """A host name of another site is refused for reads and writes, because it may resolve to this machine."""
    assert allowed(CHECK, READ, host=host) is own
    assert allowed(CHECK, WRITE, host=host) is own


@pytest.mark.parametrize(
    ("headers", "may_write"),
    [
        ({}, True),
        ({"origin": "http://localhost:9520"}, True),
        ({"origin": "https://shop.example"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://behind.example"}, True),
        ({"origin": "https://localhost:9520"}, True),
        ({"origin": "https://page.example"}, False),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "null"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "https://page.example"}, False),
    ],
)
def test_pages_of_other_sites_change_nothing(headers: dict[str, str], may_write: bool) -> None:
    """A web page of another origin may read, but may not send a changing call."""
    assert allowed(CHECK, WRITE, host="localhost:9520", **headers) is may_write
    assert allowed(CHECK, READ, host="localhost:9520", **headers)
    assert allowed(ANY_NAME, WRITE, host="localhost:9520", **headers) is may_write


def test_only_a_listener_on_loopback_knows_all_of_its_names() -> None:
    """A listener for other machines accepts every host name, and web pages from the same host name."""
    assert allowed(ANY_NAME, WRITE, host="log.cluster.example", origin="http://log.cluster.example")


def test_every_origin_may_be_allowed() -> None:
    """A star in the allowed origins admits web pages of every origin."""
    assert allowed(HostCheck(["*"], []), WRITE, host="localhost", origin="https://page.example")
