"""TLS files of a client: the authorities that it trusts, and its own certificate for brokers that require one.

`settings` chooses the files. The transport reads the files when it opens a connection pool, and checks them for
changes. The module must not depend on connections.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from fairlead.errors import SettingError

CA_VARIABLE: Final = "FAIRLEAD_CA_FILE"
CERT_VARIABLE: Final = "FAIRLEAD_CLIENT_CERT_FILE"
KEY_VARIABLE: Final = "FAIRLEAD_CLIENT_KEY_FILE"
MOUNTED_CA: Final = Path("/var/run/secrets/fairlead/ca.crt")
"""Path at which the bundle of the cluster's authorities is mounted in a pod."""
FILE_BYTES_MAX: Final = 1 << 20

FilePath: TypeAlias = "str | os.PathLike[str]"
FileState: TypeAlias = "tuple[int, int, int, int] | None"


@dataclass(frozen=True, slots=True, repr=False)
class TlsMaterial:
    """Content of the TLS files. The class has no `repr`, because the content may include a private key."""

    ca_pem: bytes | None
    """Certificates of additional authorities; None if only the system's authorities are trusted."""
    identity_pem: bytes | None
    """Key and certificate chain of the client; None without a client certificate."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the TLS files; None for a file that is not used."""

    ca_file: Path | None = None
    """PEM file with the authorities that sign the brokers' certificates, in addition to the system's authorities."""
    client_cert_file: Path | None = None
    """PEM file with the client's certificate, for brokers that require one, used with `client_key_file`."""
    client_key_file: Path | None = None
    """PEM file with the key of `client_cert_file`, without a password."""

    @classmethod
    def chosen(
        cls, ca_file: FilePath | None, client_cert_file: FilePath | None, client_key_file: FilePath | None
    ) -> TlsFiles:
        """Return the files that arguments name, else those in the environment, else the mounted bundle.

        Raises `SettingError` for a certificate without a key, or a key without a certificate.
        """
        ca = _path(ca_file, CA_VARIABLE, "ca_file")
        if ca is None and MOUNTED_CA.is_file():
            ca = MOUNTED_CA
        certificate = _path(client_cert_file, CERT_VARIABLE, "client_cert_file")
        key = _path(client_key_file, KEY_VARIABLE, "client_key_file")
        if (certificate is None) != (key is None):
            lacking = "client_cert_file" if certificate is None else "client_key_file"
            raise SettingError(
                lacking, None, "a path; client_cert_file and client_key_file must be given together"
            )
        return cls(ca, certificate, key)

    def states(self) -> tuple[FileState, ...]:
        """Return the identity, size and modification time of each file, which change with its content."""
        files = (self.ca_file, self.client_cert_file, self.client_key_file)
        return tuple(None if file is None else _state(file) for file in files)

    def read(self) -> TlsMaterial:
        """Read and check the files. Raises `SettingError`, which names the file and what is allowed."""
        ca = identity = None
        if self.ca_file is not None:
            ca = _content("ca_file", self.ca_file)
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca.decode("latin-1"))
            except ssl.SSLError as error:
                raise SettingError(
                    "ca_file", str(self.ca_file), f"a file with certificates in PEM ({error.reason})"
                ) from error
        if self.client_cert_file is not None and self.client_key_file is not None:
            identity = b"\n".join(
                (
                    _content("client_key_file", self.client_key_file),
                    _content("client_cert_file", self.client_cert_file),
                )
            )
            self._check_identity(self.client_cert_file, self.client_key_file)
        return TlsMaterial(ca, identity)

    @staticmethod
    def _check_identity(certificate: Path, key: Path) -> None:
        def no_password() -> str:
            allowed = "a file with a key in PEM without a password"
            raise SettingError("client_key_file", str(key), allowed)

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, no_password)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            allowed = f"a file with a certificate in PEM, and its key in client_key_file ({reason})"
            raise SettingError("client_cert_file", str(certificate), allowed) from error


NO_FILES: Final = TlsFiles()
"""Value for a client without TLS files, which trusts only the system's authorities and has no certificate."""


def _path(argument: object, variable: str, name: str) -> Path | None:
    given = argument if argument is not None else os.environ.get(variable) or None
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not (text := os.fspath(given)):
        raise SettingError(name, given, "the path of a file")
    return Path(text)


def _content(name: str, file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingError(name, str(file), f"a readable file ({error.strerror})") from error
    if len(content) > FILE_BYTES_MAX:
        raise SettingError(name, str(file), f"a file of at most {FILE_BYTES_MAX} bytes")
    return content


def _state(file: Path) -> FileState:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
