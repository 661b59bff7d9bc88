"""Identity of brokers in calls between them, and the headers of each call.

The headers of peer calls name the cluster, the broker, its epoch and the revision of its mirror. Requests also contain
a proof, or the broker's secret for a broker whose registration has no key. `peers` and the server's peer listener write
and check the headers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision

CLUSTER_ID: Final = "fairlead-cluster-id"
BROKER_ID: Final = "fairlead-broker-id"
BROKER_EPOCH: Final = "fairlead-broker-epoch"
PEER_SECRET: Final = "fairlead-peer-secret"  # noqa: S105 - a header name, not a secret
BROKER_PROOF: Final = "fairlead-broker-proof"
MIRROR_REVISION: Final = "fairlead-mirror-revision"
CALLER_SCHEME: Final = "fairlead-caller-scheme"
"""Header of a forwarded call from a client that needs different addresses than clients without TLS: `https`, or the
base URL that an external client called.
"""

CALLER_ADDRESS: Final = "fairlead-caller-address"
"""Header of a forwarded call with the address of the client, for the audit log."""
CALLER_TOKEN: Final = "fairlead-caller-token"  # noqa: S105 - a header name, not a secret
"""Header of a forwarded call with the id of the client's API token, for the audit log."""
CALLER_ISSUER: Final = "fairlead-caller-issuer"
"""Header of a forwarded call with the issuer of the client's signed token, for the audit log. If the key that verified
the token has an id, the value ends with `/` and the percent-encoded id."""
CALLER_ISSUED: Final = "fairlead-caller-issued"
"""Header of a forwarded call with the wall-clock time in microseconds at which the client's token was created."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Identity of this broker in calls to its peers. The broker epoch and the revision change while the broker runs."""

    cluster_id: str
    broker: BrokerId
    secret: str
    """Secret for brokers of older releases, whose registrations have no key."""
    epoch: Callable[[], BrokerEpoch]
    revision: Callable[[], Revision]
    """Function that returns the revision of this broker's mirror."""

    def headers(self) -> dict[str, str]:
        """Return the identity headers of an answer. Requests also contain a proof or the secret."""
        return {
            CLUSTER_ID: self.cluster_id,
            BROKER_ID: str(self.broker),
            BROKER_EPOCH: str(self.epoch()),
            MIRROR_REVISION: str(self.revision()),
        }


def secret_hash(secret: str) -> str:
    """Return the lower-case hexadecimal SHA-256 of a secret, which the registration contains."""
    return hashlib.sha256(secret.encode()).hexdigest()
