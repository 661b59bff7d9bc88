"""Where an idempotent producer gets its identity: `POST /v1/producers`.

Called by the sender. Must not know batches and sequences.
"""

from __future__ import annotations

from fairlead.connection.simple_calls import decoded
from fairlead.connection.transport import Transport, json_call
from fairlead.producing.sequencing import ProducerIdentity
from fairlead_api.routes.producers import AllocateProducerRequest, ProducerAnswer


async def take_identity(transport: Transport, name: str | None) -> ProducerIdentity:
    """Return a new producer id, or the next epoch of a name. Asked again, it is another one: nothing is lost by that.

    Raises the errors of `Transport.call`.
    """
    subject = "producer id" if name is None else f"producer {name}"
    call = json_call("POST", "/v1/producers", subject, body=AllocateProducerRequest(name=name))
    answer = await transport.call(call)
    found = decoded(answer, ProducerAnswer, subject)
    return ProducerIdentity(found.producer_id, found.producer_epoch)
