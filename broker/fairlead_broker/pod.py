"""Settings that a broker takes from its pod: placeholders in addresses, and a mounted folder with etcd credentials.

`settings` uses this module before it validates values. All brokers have the same pod template, and placeholders in the
template stand for the values that differ. The module depends on Kubernetes only for the four variables that a pod
template sets from field references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OF_POD = {"pod": "POD_NAME", "namespace": "POD_NAMESPACE", "ip": "POD_IP", "node": "NODE_IP"}
"""Placeholders and the pod variables that replace them. `{id}` is replaced by the broker's own id, and `{id+30000}` by
the sum of the broker's id and a number."""
CREDENTIAL_FILES = {"etcd_ca": "ca.crt", "etcd_cert": "tls.crt", "etcd_key": "tls.key"}
"""Settings whose value is the path of a file in the folder, with the file names, as in a Secret of type TLS."""
CREDENTIAL_TEXTS = {"etcd_user": "username", "etcd_password": "password"}
"""Settings whose value is the content of a file, with the file names, as in a Secret of type basic-auth."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_ID_SUM = re.compile(r"id\+(\d{1,5})")


def filled(text: str, broker: int | str | None, environment: Mapping[str, str]) -> str:
    """Return an address with its placeholders filled.

    Raises ValueError for an unknown placeholder, and for a placeholder whose variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "id":
            return str(broker)
        if (added := _ID_SUM.fullmatch(name)) and broker is not None:
            return str(int(broker) + int(added[1]))
        if name not in OF_POD:
            known = ", ".join(f"{{{each}}}" for each in ("id", "id+30000", *OF_POD))
            message = f"{text!r} has the unknown placeholder {match[0]}; known are {known}"
            raise ValueError(message)
        found = environment.get(OF_POD[name], "")
        if not found:
            message = f"{text!r} needs the variable {OF_POD[name]} for {match[0]}, but it is not set"
            raise ValueError(message)
        # An IPv6 address needs brackets before a port.
        return f"[{found}]" if name in ("ip", "node") and ":" in found else found

    return _PLACEHOLDER.sub(value, text)


def credentials(folder: Path) -> dict[str, Any]:
    """Return the settings that the files in a folder contain. A setting whose file is missing is not set.

    Raises ValueError if the folder is missing or a file cannot be read.
    """
    if not folder.is_dir():
        message = f"there is no folder {folder}"
        raise ValueError(message)
    found: dict[str, Any] = {
        setting: folder / name for setting, name in CREDENTIAL_FILES.items() if (folder / name).is_file()
    }
    for setting, name in CREDENTIAL_TEXTS.items():
        if (folder / name).is_file():
            try:
                found[setting] = (folder / name).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                message = f"{folder / name} cannot be read: {error}"
                raise ValueError(message) from error
    return found
