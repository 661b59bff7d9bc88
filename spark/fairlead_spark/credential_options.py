"""Credentials of a read or write: a token or the file of a token, and TLS files (rule C7).

Options contain the paths of files, so the driver and each executor read their own files. Without options, each process
uses the SDK's defaults: its own environment and mounted files. Only the option `token` contains a secret: no
representation shows the token, and Spark masks options of this name in plans. The module `options` and the clients of a
process use this module, which must not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict


class ClientArguments(TypedDict):
    """Arguments of the SDK's clients."""

    token: str | None
    token_file: str | None
    allow_insecure_token: bool | None
    ca_file: str | None
    client_cert_file: str | None
    client_key_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialOptions:
    """Source of the token and TLS files, as small plain values, since every task gets a copy."""

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    allow_insecure_token: bool | None = None
    """Whether the token may be sent to other machines without TLS; None for the environment of the process."""
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], *, allow_insecure_token: bool | None) -> CredentialOptions:
        """Return the values of the options under their documented names."""
        return cls(
            token=options.get("token"),
            token_file=options.get("tokenFile"),
            allow_insecure_token=allow_insecure_token,
            ca_file=options.get("caFile"),
            client_cert_file=options.get("clientCertFile"),
            client_key_file=options.get("clientKeyFile"),
        )

    def arguments(self) -> ClientArguments:
        """Return the arguments of a client."""
        return {
            "token": self.token,
            "token_file": self.token_file,
            "allow_insecure_token": self.allow_insecure_token,
            "ca_file": self.ca_file,
            "client_cert_file": self.client_cert_file,
            "client_key_file": self.client_key_file,
        }


NO_CREDENTIALS: Final = CredentialOptions()
"""No option is given: each process uses its own environment and mounted files."""
