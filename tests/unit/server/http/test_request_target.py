"""The lookup of the route for a raw path."""

import pytest

from fairlead_api.problems import ProblemError
from fairlead_api.routes import ROUTES, Listener, route
from fairlead_broker.server.http.request_target import RouteTable
from refusals import missing

TABLE = RouteTable(entry for entry in ROUTES if entry.listener is Listener.DATA)


@pytest.mark.parametrize(
    "entry", [entry for entry in ROUTES if entry.listener is Listener.DATA], ids=lambda e: e.name
)
def test_every_route_is_found(entry) -> None:
    """Every path of the table leads to its route, with parameters by name."""
    values = {
        "topic": "flights",
        "partition": "3",
        "code": "internal",
        "asset": "calls.css",
        "broker": "0",
        "group": "g",
        "member": "m-1",
        "token": "abcdefghijkl",
        "acl": "0123456789abcdef",
        "subject": "user:ann",
        "transaction": "17.4",
        "link": "east",
    }
    found, parameters = TABLE.find(entry.method, entry.path.format(**values))

    assert found is entry
    assert parameters == {name: value for name, value in values.items() if f"{{{name}}}" in entry.path}


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        ("a%2Fb", "a/b"),
        ("%2e%2E", ".."),
        ("..", ".."),
        ("", ""),
        ("%00", "\0"),
        ("fl%C3%BCge", "flüge"),
        ("%FF", "�"),
        ("a%252Fb", "a%2Fb"),
        ("a b;c=d", "a b;c=d"),
    ],
)
def test_encoded_names_stay_names(segment: str, name: str) -> None:
    """A path segment with encoded characters is one name, and never leads to a different route."""
    found, parameters = TABLE.find("GET", f"/v1/topics/{segment}/partitions/0/records")

    assert found is route("fetch_partition")
    assert parameters["topic"] == name


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1",
        "/v1/",
        "/v1/topics/a/b",
        "/v/topics",
        "/version/topics",
        "*",
        "/v1/topics/../topics/x/y",
        "//v1/topics",
        "/V1/topics",
        "/v1/topics/x/partitions/0/records/",
        "/metrics",
        "/healthz",
        "/redoc",
        "/v1/offsets%3Alookup",
    ],
)
def test_unknown_paths(path: str) -> None:
    """Unknown paths, including those of other listeners, are refused with `route_not_found`."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("GET", path)

    assert refused.value.code == "route_not_found"


def test_a_path_of_another_listener_says_which() -> None:
    """A path of another listener is refused, and the problem names that listener."""
    ops = RouteTable(entry for entry in ROUTES if entry.listener is Listener.OPS)
    details = []
    for table, path in ((TABLE, "/metrics"), (ops, "/v1/topics"), (TABLE, "/nowhere")):
        with pytest.raises(ProblemError) as refused:
            table.find("GET", path)
        details.append(refused.value.detail)

    assert (missing(details[0], "ops"), missing(details[1], "data")) == ([], [])
    assert missing(details[2], "ops") == ["ops"]


@pytest.mark.parametrize("path", ["/v2/topics", "/v0", "/v10/topics/flights/records"])
def test_another_version_of_the_api(path: str) -> None:
    """A path of a different API version is refused, and the problem lists the supported versions."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("GET", path)

    assert refused.value.code == "unsupported_version"
    assert refused.value.data == {"value": path.split("/")[1], "supported": ["v1"]}


@pytest.mark.parametrize(
    ("segment", "partition"),
    [
        ("3:delete-records", "3"),
        ("%33:delete-records", "3"),
        (":delete-records", ""),
        ("a:b:delete-records", "a:b"),
    ],
)
def test_a_verb_stands_behind_the_last_colon(segment: str, partition: str) -> None:
    """In a path segment with a verb, the text before the last colon is the parameter, in any encoding."""
    found, parameters = TABLE.find("POST", f"/v1/topics/flights/partitions/{segment}")

    assert found is route("delete_records")
    assert parameters == {"topic": "flights", "partition": partition}


@pytest.mark.parametrize(
    "segment", ["3", "3:", "3:explode", "3%3Adelete-records", "3:Delete-records", "3:delete-records:"]
)
def test_other_verbs_are_no_calls(segment: str) -> None:
    """An unknown verb is refused with `route_not_found`, and a verb with an encoded colon is not a verb."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("POST", f"/v1/topics/flights/partitions/{segment}")

    # A path without a verb is that of the partition itself, which is only read.
    assert refused.value.code == ("route_not_found" if ":" in segment else "method_not_allowed")


def test_wrong_method_lists_the_allowed_ones() -> None:
    """A path with a wrong method is refused, and the problem lists the allowed methods, HEAD together with GET."""
    with pytest.raises(ProblemError) as refused:
        TABLE.find("PUT", "/v1/topics/flights")

    assert refused.value.code == "method_not_allowed"
    assert refused.value.data["allowed"] == ["DELETE", "GET", "HEAD", "PATCH"]


def test_head_means_get() -> None:
    """HEAD finds the route of GET, and is refused on a path without GET."""
    found, _ = TABLE.find("HEAD", "/v1/versions")
    with pytest.raises(ProblemError) as refused:
        TABLE.find("HEAD", "/v1/produce")

    assert found is route("versions")
    assert refused.value.data["allowed"] == ["POST"]
