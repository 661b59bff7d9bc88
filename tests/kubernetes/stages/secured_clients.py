"""Clients of a secured Cluster on real pods: their Users, tokens, topics and loads."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pods_stage import Load, PodsStage

if TYPE_CHECKING:
    from kube_client import Manifest

LONG_SECONDS = 900.0
FOLLOW_SECONDS = 2.0
LOAD_RIGHTS: list[Manifest] = [
    {"operations": ["read", "write"], "topics": ["load*"]},
    {"operations": ["read"], "groups": ["*"]},
]
CLOSED = {"mode": "Enforce", "tls": {"mode": "Required"}}
"""Value of `spec.security` that permits only clients with a token, through TLS."""


def environment_of(folder: Path) -> dict[str, str]:
    """Return the settings of a client whose token and authorities are in a folder."""
    return {"FAIRLEAD_TOKEN_FILE": str(folder / "token"), "FAIRLEAD_CA_FILE": str(folder / "ca.crt")}


def create_user(stage: PodsStage, name: str, acls: list[Manifest], **spec: object) -> None:
    """Create a User and wait until it is ready."""
    stage.apply_ready("User", name, {"acls": acls, **spec}, LONG_SECONDS)


@dataclass
class AccountAccess:
    """Files of a client with tokens that the API server signs for the service account `load`."""

    stage: PodsStage
    folder: Path

    def __post_init__(self) -> None:
        """Create the account and its User, and write the files."""
        manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "load"}}
        self.stage.kubernetes.api.apply(manifest, self.stage.namespace)
        create_user(self.stage, "load", LOAD_RIGHTS, serviceAccountName="load")
        (self.folder / "ca.crt").write_text(bundle_of(self.stage))
        self.renew()

    def renew(self) -> str:
        """Write a new token, as a kubelet does, and return it."""
        audience = f"fairlead/{self.stage.namespace}/main"
        token = self.stage.kubernetes.api.token("load", self.stage.namespace, audience=audience)
        new = self.folder / "token.new"
        new.write_text(token)
        new.chmod(0o600)
        new.replace(self.folder / "token")
        return token

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a client."""
        return environment_of(self.folder)


@dataclass
class Access:
    """Files of a client with a User's Secret, which follow the Secret as a mounted copy does."""

    stage: PodsStage
    folder: Path

    def __post_init__(self) -> None:
        """Create the User and write the files."""
        create_user(self.stage, "load", LOAD_RIGHTS)
        self.write()

    def write(self) -> None:
        """Write the files of the Secret."""
        found = self.stage.kubernetes.api.get("secret/load", self.stage.namespace)
        assert found is not None, "a User that is ready has a Secret"
        for name in ("token", "ca.crt"):
            new = self.folder / f"{name}.new"
            new.write_bytes(base64.b64decode(found["data"][name]))
            new.chmod(0o600)
            new.replace(self.folder / name)

    @property
    def token(self) -> str:
        """The token that clients read."""
        return (self.folder / "token").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a client."""
        return environment_of(self.folder)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Update the files during the block, as a kubelet does."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(FOLLOW_SECONDS):
                self.write()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def load_topic(stage: PodsStage, name: str) -> str:
    """Create a topic for a load through a resource, so that the test needs no token."""
    spec = {"partitions": 3, "replicas": 3, "config": {"min.insync.replicas": "2"}}
    stage.apply_ready("Topic", name, spec, LONG_SECONDS)
    return name


@contextmanager
def a_load(
    stage: PodsStage, url: str, topic: str, access: Access | AccountAccess | None = None
) -> Iterator[Load]:
    """Write to a topic during the block, and count the stored records afterwards."""
    load = Load(stage.kubernetes, url, topic, {} if access is None else access.environment)
    with load.running():
        yield load


def bundle_of(stage: PodsStage) -> str:
    """Return the file with the certificates of all authorities."""
    found: Any = stage.kubernetes.api.get("configmap/main-ca", stage.namespace)
    return str(found["data"]["ca.crt"])


def wait_for(holds: Any) -> None:
    """Wait by polling until a condition holds, because no watch reports it."""
    over = threading.Event()
    for _ in range(int(LONG_SECONDS)):
        if holds():
            return
        over.wait(1.0)
    message = "the condition did not hold in time"
    raise AssertionError(message)
