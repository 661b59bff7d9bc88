"""Proofs that brokers use to authenticate to each other (rule A20).

`peers` adds a proof to each call, and the peer listener of the called broker checks the proof. A starting broker
generates a key pair in memory and registers the public key. A proof is a JWS signed with the private key. The proof
names the sender and its epoch, the cluster, and the called broker, so that the called broker cannot use the proof for
calls to other brokers. A sender makes one proof per `RENEW_SECONDS` for each called broker, which verifies the proof
once.

Instead of the time of day, a proof contains the time since its sender started, and is refused once it is
`VALID_SECONDS` older than the newest proof of the same incarnation. An intercepted proof therefore soon becomes
useless, and brokers with wrong clocks can still call each other. Except for the check of certificates, this module
alone uses the package `cryptography`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fairlead_api import base64url
from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.clock import Clock

RENEW_SECONDS: Final = 30
"""Number of seconds that a broker sends the same proof to a peer."""
VALID_SECONDS: Final = 60
"""Maximum difference in seconds between the age in a proof and that in the newest proof of the same incarnation."""
PROOF_BYTES_MAX: Final = 1024
REMEMBERED_MAX: Final = 4
"""Maximum number of cached verified proofs of an incarnation. At most two proofs are in use at a time."""


class ProofRefused(Exception):
    """Raised for a proof that is not accepted. The text of the error is the reason."""


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a proof."""

    sub: int
    """Broker that makes the call."""
    epoch: int
    aud: int
    """Broker that is called."""
    cid: str
    """Id of the cluster."""
    age: int
    """Seconds since the start of the sender."""


_HEADER: Final = base64url.encoded(b'{"alg":"Ed25519"}')
_decode_claims: Final = msgspec.json.Decoder(_Claims).decode


class BrokerKey:
    """Key pair of one process. The class has no readable `repr`, and only the public key leaves the process."""

    __slots__ = ("_private", "public")

    def __init__(self, *random_texts: str) -> None:
        """`random_texts`: unpredictable texts with at least 256 bits of randomness in total."""
        self._private = Ed25519PrivateKey.from_private_bytes(
            hashlib.sha256(" ".join(random_texts).encode()).digest()
        )
        self.public: Final = self._private.public_key().public_bytes_raw().hex()
        """Public key in hexadecimal digits, as in the registration."""

    def signed(self, claims: bytes) -> str:
        """Return a JWS with this content."""
        content = f"{_HEADER}.{base64url.encoded(claims)}"
        return f"{content}.{base64url.encoded(self._private.sign(content.encode()))}"


@dataclass(frozen=True, slots=True, repr=False)
class PeerEvidence:
    """Secrets that prove to peers that a process is the registered broker. The class has no `repr`."""

    secret: str
    """Secret for brokers of older releases."""
    key: BrokerKey


class ProofMaker:
    """Maker of the proofs that this broker sends."""

    def __init__(
        self,
        key: BrokerKey,
        cluster_id: str,
        broker: BrokerId,
        epoch: Callable[[], BrokerEpoch],
        clock: Clock,
    ) -> None:
        """`epoch` returns the epoch of the current incarnation."""
        self._key = key
        self._cluster_id = cluster_id
        self._broker = broker
        self._epoch = epoch
        self._clock = clock
        self._begun = clock.monotonic()
        self._made: dict[BrokerId, tuple[BrokerEpoch, int, str]] = {}

    def proof(self, target: BrokerId) -> str:
        """Return a proof for a call to a broker."""
        epoch, age = self._epoch(), int(self._clock.monotonic() - self._begun)
        made = self._made.get(target)
        if made is not None and made[0] == epoch and age < made[1] + RENEW_SECONDS:
            return made[2]
        claims = _Claims(sub=self._broker, epoch=epoch, aud=target, cid=self._cluster_id, age=age)
        text = self._key.signed(msgspec.json.encode(claims))
        self._made[target] = epoch, age, text
        return text


@dataclass(slots=True)
class _Accepted:
    """Verified proofs from one incarnation of a broker."""

    epoch: BrokerEpoch
    ages: dict[str, int] = field(default_factory=dict)
    newest: int = 0


class ProofChecker:
    """Checker of the proofs that other brokers send."""

    def __init__(self, cluster_id: str, broker: BrokerId) -> None:
        """`broker`: the broker that is called."""
        self._cluster_id = cluster_id
        self._broker = broker
        self._accepted: dict[BrokerId, _Accepted] = {}

    def check(self, proof: str, sender: BrokerId, epoch: BrokerEpoch, public_key: str) -> None:
        """Raise `ProofRefused` unless the proof belongs to this incarnation of the sender.

        `public_key`: the key in the registration of the incarnation.
        """
        accepted = self._accepted.get(sender)
        if accepted is None or accepted.epoch != epoch:
            accepted = _Accepted(epoch)
        age = accepted.ages.get(proof)
        if age is None:
            age = self._verified(proof, sender, epoch, public_key)
            while len(accepted.ages) >= REMEMBERED_MAX:
                del accepted.ages[next(iter(accepted.ages))]
            accepted.ages[proof] = age
            accepted.newest = max(accepted.newest, age)
            self._accepted[sender] = accepted
        if age < accepted.newest - VALID_SECONDS:
            reason = f"its proof is {accepted.newest - age} s older than its newest proof; allowed: {VALID_SECONDS} s"
            raise ProofRefused(reason)

    def _verified(self, proof: str, sender: BrokerId, epoch: BrokerEpoch, public_key: str) -> int:
        """Return the age in a proof, in seconds. Raises `ProofRefused` unless signature and content are valid."""
        content, _, signature = proof.rpartition(".")
        header, _, claims_text = content.partition(".")
        if len(proof) > PROOF_BYTES_MAX or header != _HEADER:
            reason = "its proof is missing or malformed"
            raise ProofRefused(reason)
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
            key.verify(base64url.decoded(signature), content.encode())
            claims = _decode_claims(base64url.decoded(claims_text))
        except (InvalidSignature, ValueError, msgspec.DecodeError) as error:
            reason = "its proof is not signed with its registered key"
            raise ProofRefused(reason) from error
        named = (claims.sub, claims.epoch, claims.aud, claims.cid)
        if named != (sender, epoch, self._broker, self._cluster_id) or claims.age < 0:
            reason = (
                f"its proof is for broker {claims.sub} in epoch {claims.epoch} and for calls to broker {claims.aud} of "
                f"cluster {claims.cid}"
            )
            raise ProofRefused(reason)
        return claims.age
