"""Objects of a User: the Secret with its token, or the ConfigMap for the programs of a service account."""

from __future__ import annotations

import base64
from typing import Final

from fairlead_api.resources.user import User
from fairlead_operator.naming import (
    CONFIG_MAP,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    SECRET,
    USER,
    Kind,
    Manifest,
    audience_of,
)

TOKEN: Final = "token"  # noqa: S105 - a field of a Secret
MOUNTED: Final = "/var/run/secrets/fairlead"


def user_secret(user: User, token: str, bootstrap: str, authorities: str) -> Manifest:
    """Return the Secret of a User; the files of a mounted Secret are all that a program needs (rule K9)."""
    content = {
        TOKEN: token,
        "bootstrap": bootstrap,
        "ca.crt": authorities,
        "profile.toml": _profile(bootstrap, has_authorities=bool(authorities)),
    }
    manifest = _framed(user, SECRET, user.secret_name)
    data = {name: base64.b64encode(text.encode()).decode() for name, text in content.items()}
    return {**manifest, "type": "Opaque", "data": data}


def account_map(user: User, bootstrap: str, authorities: str) -> Manifest:
    """Return the ConfigMap of a User whose programs call with the projected token of their service account."""
    audience = audience_of(user.cluster_namespace, user.spec.cluster_ref.name)
    manifest = _framed(user, CONFIG_MAP, user.name)
    return {**manifest, "data": {"bootstrap": bootstrap, "ca.crt": authorities, "audience": audience}}


def _profile(bootstrap: str, *, has_authorities: bool) -> str:
    lines = ['current = "default"', "", "[profiles.default]", f'bootstrap = "{bootstrap}"']
    lines.append(f'token_file = "{MOUNTED}/{TOKEN}"')
    if has_authorities:
        lines.append(f'ca_file = "{MOUNTED}/ca.crt"')
    return "\n".join(lines) + "\n"


def _framed(user: User, kind: Kind, name: str) -> Manifest:
    owner = {
        "apiVersion": USER.api_version,
        "kind": USER.kind,
        "name": user.name,
        "uid": user.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": user.namespace,
            "labels": {MANAGED_BY_LABEL: FIELD_MANAGER},
            "ownerReferences": [owner],
        },
    }
