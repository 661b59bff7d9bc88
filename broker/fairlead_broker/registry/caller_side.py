"""The side of a client: the scheme and base URL of its requests, which determine the broker addresses in its answers.

`server` determines the side of each request, and passes it on to the broker that answers a forwarded request.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_broker.registry.records import Addresses


@dataclass(frozen=True, slots=True)
class CallerSide:
    """Scheme of a client's request and, for an external client, the called base URL."""

    scheme: str
    """`http` or `https`."""
    called: str | None = None
    """Base URL to which an external client sent the request, perhaps through a proxy, or None for any other client."""

    @classmethod
    def of_text(cls, text: str) -> CallerSide:
        """Return the side that another broker has passed on as `text`."""
        scheme, separator, _ = text.partition("://")
        return cls(scheme, text if separator else None)

    @property
    def text(self) -> str:
        """Return the side as text, for the broker that answers the request."""
        return self.called or self.scheme

    def url_of(self, addresses: Addresses) -> str | None:
        """Return the base URL of a broker for the client; None if the broker has no address for the client."""
        if self.called is not None:
            return addresses.external or self.called
        return addresses.data_url(self.scheme)
