"""Credentials of links: the files that brokers find, from the Secrets that Links name."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import render_kit
from fairlead_api.resources.link import Link
from fairlead_operator.naming import Manifest
from fairlead_operator.render.links import credentials_of, credentials_volume, empty_credentials


def a_link(credentials: str | None = None, authorities: str | None = None) -> Link:
    """Return the Link east."""
    source: dict[str, Any] = {"bootstrap": ["https://east:9521"]}
    if credentials is not None:
        source["credentialsSecretRef"] = {"name": credentials}
    if authorities is not None:
        source["caSecretRef"] = {"name": authorities}
    spec = {"clusterRef": {"name": "main"}, "source": source, "topics": {"include": ["*"]}}
    return Link.parse({"metadata": {"name": "east", "namespace": "shop"}, "spec": spec})


def secret(**data: str) -> Manifest:
    """Return a Secret; `_` in a name stands for a dot."""
    return {
        "data": {
            name.replace("_", "."): base64.b64encode(text.encode()).decode() for name, text in data.items()
        }
    }


def files(link: Link, **secrets: Manifest | None) -> dict[str, str | None]:
    """Return the files of a link by name; None for a file that is removed."""
    keys, missing = credentials_of(link, secrets)
    assert missing is None
    return {name: None if text is None else base64.b64decode(text).decode() for name, text in keys.items()}


def test_the_secret_of_a_user_is_enough() -> None:
    """The Secret of a User has a token and authorities; other keys reach no broker."""
    found = files(a_link("user"), user=secret(token="t", ca_crt="pem", profile_toml="x"))

    assert found == {"east.token": "t", "east.ca": "pem", "east.crt": None, "east.key": None}


def test_authorities_may_have_a_secret_of_their_own() -> None:
    """A client certificate comes from one Secret, and the authorities from another Secret."""
    identity = secret(tls_crt="cert", tls_key="key", ca_crt="own")
    found = files(a_link("identity", "public"), identity=identity, public=secret(ca_crt="public"))

    assert found == {"east.token": None, "east.ca": "public", "east.crt": "cert", "east.key": "key"}


def test_a_link_without_credentials_has_no_files() -> None:
    """Files of credentials that the Link no longer names are removed, and so is an empty key."""
    assert set(files(a_link()).values()) == {None}
    assert files(a_link("user"), user=secret(token="t", ca_crt=" "))["east.ca"] is None


@pytest.mark.parametrize(
    ("link", "secrets", "named"),
    [
        (a_link("gone"), {"gone": None}, "gone"),
        (a_link(None, "gone"), {}, "gone"),
        (a_link("user"), {"user": secret(tls_crt="cert")}, "user"),
        (a_link("user"), {"user": {"data": {"token": "not base64"}}}, "user"),
        (a_link("user", "public"), {"user": secret(token="t"), "public": secret(ca="x")}, "public"),
    ],
)
def test_missing_credentials_are_named(link: Link, secrets: dict[str, Manifest | None], named: str) -> None:
    """A Secret that does not exist, or lacks its keys, is reported."""
    _, missing = credentials_of(link, secrets)

    assert missing is not None
    assert f"Secret {named}" in missing


def test_the_secret_of_a_cluster_is_the_one_that_brokers_mount() -> None:
    """The Secret without credentials has the name in the brokers' volume, and belongs to the Cluster."""
    cluster = render_kit.cluster_of()
    made = empty_credentials(cluster)

    assert made["metadata"]["name"] == credentials_volume(cluster)["secret"]["secretName"]
    assert made["metadata"]["ownerReferences"][0]["name"] == cluster.name
    assert "data" not in made
