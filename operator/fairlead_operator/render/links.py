"""Secret with the credentials of all links of a Cluster, which the brokers' pods mount as a folder.

The volume is optional and always present, and the keys of the Secret are the file names that brokers expect. A changed
Secret changes no pod, so links come and go without a restart of a broker.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.link import Link
from fairlead_operator.naming import (
    BROKER_COMPONENT,
    CONFIG_FOLDER,
    SECRET,
    Manifest,
    link_credentials_name,
)
from fairlead_operator.render.metadata import framed

FOLDER: Final = f"{CONFIG_FOLDER}-links"
VOLUME: Final = "link-credentials"
FILES: Final[Mapping[str, str]] = {"token": "token", "ca.crt": "ca", "tls.crt": "crt", "tls.key": "key"}
"""Extension of the brokers' file for each key of a Secret that a Link names."""


def credentials_volume(cluster: Cluster) -> Manifest:
    """Return the volume with the credentials of links, which may be empty."""
    return {"name": VOLUME, "secret": {"secretName": link_credentials_name(cluster.name), "optional": True}}


def credentials_mount() -> Manifest:
    """Return the mount of the credentials of links."""
    return {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}


def empty_credentials(cluster: Cluster) -> Manifest:
    """Return the Secret without the credentials of a link."""
    manifest = framed(cluster, SECRET, link_credentials_name(cluster.name), component=BROKER_COMPONENT)
    return {**manifest, "type": "Opaque"}


def credentials_of(
    link: Link, secrets: Mapping[str, Manifest | None]
) -> tuple[dict[str, str | None], str | None]:
    """Return the keys of a link in the Secret, with None for absent files, and what is missing.

    `secrets` contains the Secrets that the Link names, by name; None for a Secret that does not exist.
    """
    source = link.spec.source
    credentials, authorities = source.credentials_secret_ref, source.ca_secret_ref
    found: dict[str, str | None] = dict.fromkeys((f"{link.name}.{each}" for each in FILES.values()), None)
    for reference in (credentials, authorities):
        if reference is not None and secrets.get(reference.name) is None:
            return found, f"there is no Secret {reference.name}"
    if credentials is not None:
        data = _data(secrets[credentials.name])
        if not ("token" in data or {"tls.crt", "tls.key"} <= data.keys()):
            message = f"Secret {credentials.name} has neither the key token nor the keys tls.crt and tls.key"
            return found, message
        found |= {f"{link.name}.{FILES[key]}": data[key] for key in FILES if key in data}
    if authorities is not None:
        data = _data(secrets[authorities.name])
        if "ca.crt" not in data:
            return found, f"Secret {authorities.name} has no key ca.crt"
        found[f"{link.name}.{FILES['ca.crt']}"] = data["ca.crt"]
    return found, None


def _data(secret: Manifest | None) -> dict[str, str]:
    """Return the keys of a Secret that are not empty, for instance because a User has no authority of its own."""
    return {key: text for key, text in ((secret or {}).get("data") or {}).items() if _is_given(text)}


def _is_given(text: str) -> bool:
    try:
        return bool(base64.b64decode(text).strip())
    except binascii.Error:
        return False
