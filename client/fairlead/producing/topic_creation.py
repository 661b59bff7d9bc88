"""Topics that are created when somebody writes to them, in clusters with `auto.create.topics.enable`.

Called by the producer. Batches go by topic id, so a broker cannot do it when they come: it is asked for the setting,
and the topic is created with the cluster's defaults; whoever else creates it meanwhile is as welcome.
"""

from __future__ import annotations

from fairlead.connection.metadata import MetadataCache
from fairlead.connection.simple_calls import decoded
from fairlead.connection.transport import Transport, json_call
from fairlead.errors import UnreachableError
from fairlead_api.bodies.metadata import ConfigDescription

SETTING = "auto.create.topics.enable"


async def creates_topics(transport: Transport, metadata: MetadataCache) -> bool:
    """Whether the cluster creates topics by itself; raises `UnreachableError` when no broker answers."""
    return await transport.retry(_setting, transport, metadata)


async def create_topic(transport: Transport, topic: str) -> None:
    """Create a topic with the cluster's defaults, or find that it is there."""
    await transport.call(json_call("POST", "/v1/topics", f"create topic {topic}", body={"name": topic}))


async def _setting(transport: Transport, metadata: MetadataCache) -> bool:
    """Ask a broker at its own address: no other knows what it was started with."""
    failures: dict[str, str] = {}
    for broker, address in sorted(metadata.picture.addresses.items()):
        asked = json_call("GET", f"/v1/brokers/{broker}/config", f"describe broker {broker}")
        try:
            answer = await transport.send(asked, address)
        except UnreachableError as error:
            failures.update(error.attempts)
            continue
        config = decoded(answer, ConfigDescription, asked.subject).config
        return str(config[SETTING].value).lower() == "true"
    # Brokers that have just come, or lost their leases, are not in the picture yet.
    await metadata.refresh()
    raise UnreachableError("ask a broker whether it creates topics", failures, sent=False)
