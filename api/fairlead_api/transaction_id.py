"""Ids of transactions: a producer id and a producer epoch, written as `17.4`.

Every transaction of a producer has its own epoch, so an id names one transaction only.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fairlead_api.excerpts import shortened, shown
from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError

PRODUCER_ID_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
"""Maximum producer epoch, since batches store the epoch in 32 bits."""
_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,9})")


class TransactionId(NamedTuple):
    """Id of a transaction."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        """Return the id as in paths and headers, such as `17.4`."""
        return f"{self.producer_id}.{self.epoch}"


def parse_transaction_id(text: str) -> TransactionId:
    """Return the id in a text such as `17.4`. Raises `malformed_request` for a text that is not an id."""
    match = _TEXT.fullmatch(text)
    if match is not None:
        producer_id, epoch = int(match[1]), int(match[2])
        if producer_id <= PRODUCER_ID_MAX and epoch <= EPOCH_MAX:
            return TransactionId(ProducerId(producer_id), ProducerEpoch(epoch))
    raise ProblemError(
        "malformed_request",
        f"transaction {shown(text)} is not allowed; expected <producer id>.<epoch> in decimal, without leading zeros",
        data={"parameter": "transaction", "value": shortened(text)},
    )
