"""Proofs with which brokers authenticate to each other (rule A20).

Callers: ``peers`` makes a proof for each call, and the peer listener checks it. At its start a broker makes a pair of
keys in memory and registers the public key. A proof is a JWS signed with the private key. It names the sender and its
epoch, the cluster, and the one broker for which it is meant, so that no broker can pass on the proof of another. A
proof is made once in `RENEW_SECONDS` for each target, and verified once.

A proof contains the time since the start of its sender instead of the time of day, and is refused once it is
`VALID_SECONDS` older than the newest proof of the same incarnation. Thus a proof that was read on the way is soon
useless, and brokers with wrong clocks still reach each other. Besides the check of certificates, only this module uses
the package `cryptography`.
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
"""Time for which a broker sends the same proof to a peer."""
VALID_SECONDS: Final = 60
"""Greatest difference between a proof and the newest proof of the same incarnation."""
PROOF_BYTES_MAX: Final = 1024
REMEMBERED_MAX: Final = 4
"""Number of verified proofs of an incarnation that are remembered; two are in use at most."""


class ProofRefused(Exception):
    """Raised for a proof that is not accepted; the text is the reason."""


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
    """Pair of keys of one process. It has no readable representation, and leaves the process only as a public key."""

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
    """What a process proves to peers that it is the registered broker with. It has no `repr`, because it is secret."""

    secret: str
    """Secret for brokers of older releases."""
    key: BrokerKey


class ProofMaker:
    """Makes the proofs of this broker."""

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
    """Verified proofs of one incarnation of a broker."""

    epoch: BrokerEpoch
    ages: dict[str, int] = field(default_factory=dict)
    newest: int = 0


class ProofChecker:
    """Checks the proofs of the other brokers."""

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
            reason = f"its proof is {accepted.newest - age} s older than its newest one; allowed: {VALID_SECONDS} s"
            raise ProofRefused(reason)

    def _verified(self, proof: str, sender: BrokerId, epoch: BrokerEpoch, public_key: str) -> int:
        """Return the age in a proof whose signature and content are right."""
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
                f"its proof is for broker {claims.sub} in epoch {claims.epoch}, called is broker {claims.aud} of "
                f"cluster {claims.cid}"
            )
            raise ProofRefused(reason)
        return claims.age
