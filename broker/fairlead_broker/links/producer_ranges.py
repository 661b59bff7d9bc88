"""Range of producer ids of each cluster, so that producers of a mirror's source never share an id with others.

A mirror contains records from the producers of its source. Without ranges, a promoted mirror could mistake the first
batch from a producer of its own cluster for a repeat of a copied batch, and not store the batch (rule L11).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from fairlead_api.identifiers import ProducerId
from fairlead_broker.producers.state import RANGED_IDS_FROM

PREFIX_BITS: Final = 31


def first_producer_id(cluster_id: str) -> ProducerId:
    """Return the first producer id of a cluster's range."""
    digest = int.from_bytes(sha256(cluster_id.encode()).digest(), "big")
    prefix = digest >> (sha256().digest_size * 8 - PREFIX_BITS)
    return ProducerId(max(prefix, 1) * RANGED_IDS_FROM)
