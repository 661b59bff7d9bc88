"""Settings of one issuer of signed tokens (rule A14).

`settings` contains one object for each issuer. Issuers are part of a broker's settings and are never changed by a
request, because brokers call the addresses that issuers contain.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from fairlead_api.principals import ISSUER_NAME, ISSUER_NAME_RULE, OTHER_SOURCES
from fairlead_broker.credentials.claims import ALGORITHMS, OLD_ALGORITHM_NAMES
from fairlead_broker.credentials.key_addresses import is_allowed, is_url

_NAME: Final = re.compile(ISSUER_NAME)


def _algorithms(value: object) -> object:
    """Return the algorithms as a list. The value is a list or a text separated by commas."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    return tuple(OLD_ALGORITHM_NAMES.get(str(name).strip(), str(name).strip()) for name in names)


class IssuerSettings(BaseModel):
    """Issuer whose signed tokens are accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str | None = None
    """Exact value of the claim `iss`, an https address. With `kubernetes` the default is the issuer of the broker's own
    token; without `kubernetes` the value is required.
    """

    audience: str | None = None
    """Value that the claim `aud` must equal or contain; by default `fairlead/` and the name of the cluster."""

    jwks: str | None = None
    """Address (https, or http on this machine) or file with the issuer's keys. By default the issuer's discovery
    document `/.well-known/openid-configuration` names the address.
    """

    ca: Path | None = None
    """PEM file with authorities that are accepted when keys are fetched, in addition to the system's authorities."""

    bearer_file: Path | None = None
    """File with the bearer token that is sent when the keys are fetched."""

    principal_claim: str = "sub"
    """Claim with the name of the caller."""

    groups_claim: str | None = None
    """Claim with the list of the caller's groups."""

    algorithms: Annotated[tuple[str, ...], BeforeValidator(_algorithms)] = ALGORITHMS
    """Accepted signature algorithms, as a list or, in a file, separated by commas."""

    token_seconds_max: int = Field(default=86_400, ge=1)
    """Maximum number of seconds between `iat` and `exp` of a token."""

    kubernetes: bool = False
    """Whether the issuer signs the service account tokens of the Kubernetes cluster in which the broker runs."""

    @field_validator("algorithms")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - set(ALGORITHMS))
        if unknown or not value:
            msg = f"{', '.join(unknown) or 'no algorithm'} is not allowed; allowed: {', '.join(ALGORITHMS)}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _can_be_fetched(self) -> Self:
        """Refuse an issuer whose keys cannot be fetched safely."""
        if self.issuer is None and not self.kubernetes:
            msg = "issuer is required, unless kubernetes is set"
            raise ValueError(msg)
        addresses = (
            {"jwks": self.jwks} if self.jwks is not None or self.kubernetes else {"issuer": self.issuer}
        )
        for name, text in addresses.items():
            if text is not None and (name == "issuer" or is_url(text)) and not is_allowed(text):
                msg = f"{name} {text} is neither an https address nor on this machine"
                raise ValueError(msg)
        return self


def check_name(name: str) -> None:
    """Raise ValueError for a name that no issuer may have."""
    if not _NAME.fullmatch(name) or name in OTHER_SOURCES:
        msg = f"{name!r} is not the name of an issuer: {ISSUER_NAME_RULE}; not {', '.join(sorted(OTHER_SOURCES))}"
        raise ValueError(msg)
