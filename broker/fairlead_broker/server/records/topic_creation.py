"""Creating the topic that a produce call found missing.

Callers: the families that produce. The controller creates it, wherever that is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.routing.forwarding import Forwarding


async def create_to_write(
    call: Call,
    broker: Broker,
    forwarding: Forwarding,
    planned: TopicView,
    batches: Sequence[tuple[memoryview, bool]],
) -> TopicView:
    """Create the topic that a produce found missing, once its batches (and whether keyed) may be stored.

    Raises what a leader refuses in a batch, and what creating a topic raises.
    """
    for batch, keyed in batches:
        await in_thread(broker.check_produced, planned, batch, keyed=keyed)
    return await forwarding.create_topic(call, CreateTopicRequest(name=call.topic))
