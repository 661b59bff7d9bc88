"""How the operator calls the brokers of a Cluster with security: over TLS, as its own service account (rule A22).

The authorities come from the ConfigMap that the operator itself writes for clients. The token comes from the API
server, and is valid for the audience of one cluster and for ten minutes. The operator presents the brokers'
certificate, because listeners that request client certificates accept it. Authorities, token and certificate are stored
in files that only this process may read, because the SDK reads changed files again without a restart.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    CONFIG_MAP,
    SECRET,
    Manifest,
    ObjectRef,
    audience_of,
    authority_name,
    brokers_tls_name,
)

TOKEN_SECONDS: Final = 600
RENEW_SECONDS: Final = TOKEN_SECONDS / 2
BUNDLE: Final = "ca.crt"


class IdentityApi(Protocol):
    """The API server calls that the identity needs."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return an object; None if the object does not exist. Raises `ApiError`."""
        ...

    async def account_token(self, account: ObjectRef, audience: str, seconds: int) -> str:
        """Return a token of a service account. Raises `ApiError`."""
        ...


class Objects(Protocol):
    """The cache of objects."""

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return an object; None if the object is not cached."""
        ...


@dataclass(frozen=True, slots=True)
class SecureAccess:
    """Address template and files for calls to the brokers of one Cluster."""

    url: str
    ca_file: Path | None
    token_file: Path | None
    certificate_files: tuple[Path, Path] | None = None
    """Certificate and key for listeners that request certificates of clients."""
    allow_insecure: bool = False
    """Whether the token is sent without TLS, because a mesh terminates TLS."""


@dataclass(slots=True)
class _Files:
    folder: Path
    authorities: str = ""
    token_at: float | None = None
    certificate_at: float | None = None


class OperatorIdentity:
    """Identity of the operator in calls to brokers, with its own files for each Cluster."""

    def __init__(
        self,
        api: IdentityApi,
        cache: Objects,
        clock: Clock,
        account: ObjectRef | None,
        url: str,
        tls_url: str,
    ) -> None:
        """`account`: service account of the operator; None if the operator has no token.

        `url` and `tls_url` are templates of the brokers' addresses without and with TLS.
        """
        self._api = api
        self._cache = cache
        self._clock = clock
        self._account = account
        self._url = url
        self._tls_url = tls_url
        self._root: Path | None = None
        self._files: dict[tuple[str, str], _Files] = {}

    @property
    def superusers(self) -> tuple[str, ...]:
        """The principal of the operator, a superuser of every Cluster with security."""
        account = self._account
        return () if account is None else (f"k8s:{account.namespace}:{account.name}",)

    async def access(self, cluster: Manifest) -> SecureAccess | None:
        """Return the address template and files for calls to the brokers; None for brokers without TLS and tokens.

        Raises `ApiError`.
        """
        security = cluster.get("spec", {}).get("security")
        listeners = (cluster.get("status") or {}).get("listeners") or []
        internal = [each for each in listeners if each.get("name") != "external"]
        is_tls = any(str(each.get("bootstrap", "")).startswith("https://") for each in internal)
        if security is None:
            # Brokers of a Cluster whose security was removed keep TLS and tokens until they have restarted.
            security = {}
        is_insecure = not is_tls and bool(security.get("allowPlaintext"))
        if not is_tls and not is_insecure:
            return None
        files = self._files_of(cluster)
        ca_file = self._write_authorities(cluster, files) if is_tls else None
        token_file = (
            await self._write_token(cluster, files) if security.get("serviceAccounts", True) else None
        )
        return SecureAccess(
            self._tls_url if is_tls else self._url,
            ca_file,
            token_file,
            await self._write_certificate(cluster, files) if is_tls else None,
            is_insecure,
        )

    def forget(self, namespace: str, cluster: str) -> None:
        """Remove the files of a deleted Cluster."""
        files = self._files.pop((namespace, cluster), None)
        if files is not None:
            shutil.rmtree(files.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all files."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
        self._root = None
        self._files.clear()

    def _files_of(self, cluster: Manifest) -> _Files:
        metadata = cluster["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="fairlead-operator-"))
        if key not in self._files:
            folder = self._root / "_".join(key)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._files[key] = _Files(folder)
        return self._files[key]

    def _write_authorities(self, cluster: Manifest, files: _Files) -> Path | None:
        metadata = cluster["metadata"]
        found = self._cache.get(
            ObjectRef(CONFIG_MAP, metadata["namespace"], authority_name(metadata["name"]))
        )
        text = str(((found or {}).get("data") or {}).get(BUNDLE, ""))
        if not text and not files.authorities:
            return None
        path = files.folder / BUNDLE
        if text and text != files.authorities:
            _replace(path, text)
            files.authorities = text
        return path

    async def _write_token(self, cluster: Manifest, files: _Files) -> Path | None:
        if self._account is None:
            return None
        path, now = files.folder / "token", self._clock.monotonic()
        if files.token_at is None or now - files.token_at > RENEW_SECONDS:
            metadata = cluster["metadata"]
            audience = audience_of(metadata["namespace"], metadata["name"])
            _replace(path, await self._api.account_token(self._account, audience, TOKEN_SECONDS))
            files.token_at = now
        return path

    async def _write_certificate(self, cluster: Manifest, files: _Files) -> tuple[Path, Path] | None:
        """Write the brokers' certificate and key; None before the Secret exists."""
        paths, now = (files.folder / "tls.crt", files.folder / "tls.key"), self._clock.monotonic()
        if files.certificate_at is None or now - files.certificate_at > RENEW_SECONDS:
            metadata = cluster["metadata"]
            secret = await self._api.get(
                ObjectRef(SECRET, metadata["namespace"], brokers_tls_name(metadata["name"]))
            )
            content = (secret or {}).get("data") or {}
            if not all(path.name in content for path in paths):
                return None
            for path in paths:
                _replace(path, b64decode(content[path.name]).decode())
            files.certificate_at = now
        return paths


def _replace(path: Path, text: str) -> None:
    """Replace a file that only this process may read; a concurrent reader sees the whole old or new content."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
