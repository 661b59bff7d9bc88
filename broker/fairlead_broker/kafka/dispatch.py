"""Execution of requests: decodes each request, passes it to the family of its API, and encodes the response.

`connection` calls `Dispatch.serve` for each frame. Unknown APIs and versions close the connection, except ApiVersions,
which is answered in version 0 so that a client finds out which versions the listener answers (KIP-511).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import ref

from fairlead_broker.kafka.calls.admin.changes import Changes
from fairlead_broker.kafka.calls.admin.cluster import ClusterCalls
from fairlead_broker.kafka.calls.admin.configs import ConfigCalls
from fairlead_broker.kafka.calls.admin.partitions import PartitionCalls
from fairlead_broker.kafka.calls.admin.records import RecordCalls
from fairlead_broker.kafka.calls.admin.topics import TopicCalls
from fairlead_broker.kafka.calls.call import Client, CloseConnection, KafkaCall
from fairlead_broker.kafka.calls.classic import ClassicCalls
from fairlead_broker.kafka.calls.coordinators import CoordinatorCalls
from fairlead_broker.kafka.calls.fetch import FetchCalls
from fairlead_broker.kafka.calls.group_offsets import GroupOffsetCalls
from fairlead_broker.kafka.calls.groups import GroupCalls
from fairlead_broker.kafka.calls.metadata import MetadataCalls
from fairlead_broker.kafka.calls.offsets import OffsetCalls
from fairlead_broker.kafka.calls.produce import ProduceCalls
from fairlead_broker.kafka.calls.producers import ProducerCalls
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.versions import api_versions, unsupported_version
from fairlead_broker.kafka.protocol.apis import APIS, ApiKey
from fairlead_broker.kafka.protocol.frames import Frame
from fairlead_broker.kafka.protocol.messages import UndecodableError, decode_request, encode_response
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.audit_log import AUDITED_REQUEST

Execute = Callable[[KafkaCall], Awaitable[Reply | None]]
_VERSIONS_API: Final = APIS[ApiKey.API_VERSIONS]


@dataclass(slots=True)
class SentReply:
    """Response of one request as bytes."""

    buffers: Sequence[bytes | bytearray | memoryview]
    release: Callable[[], None] | None = None

    def sent(self) -> None:
        """Release the resources of the response."""
        if self.release is not None:
            self.release()


class Dispatch:
    """Executes the requests of all connections."""

    def __init__(self, broker: Broker, new_id: Callable[[], str]) -> None:
        """`new_id` returns a random UUID."""
        self._broker = broker
        changes = Changes(broker)
        self._execute: Mapping[ApiKey, Execute] = {
            ApiKey.API_VERSIONS: api_versions,
            **MetadataCalls(broker, changes).calls(),
            **ProduceCalls(broker).calls(),
            **FetchCalls(broker).calls(),
            **OffsetCalls(broker).calls(),
            **ProducerCalls(broker).calls(),
            **CoordinatorCalls(broker).calls(),
            **GroupCalls(broker, changes, new_id).calls(),
            **ClassicCalls(broker, new_id).calls(),
            **GroupOffsetCalls(broker, changes).calls(),
            **TopicCalls(broker, changes).calls(),
            **ConfigCalls(broker, changes).calls(),
            **PartitionCalls(broker, changes).calls(),
            **RecordCalls(broker, changes).calls(),
            **ClusterCalls(broker).calls(),
        }
        assert self._execute.keys() == APIS.keys(), "every API in the table has a call, and every call an API"

    async def serve(self, frame: Frame, client: Client) -> SentReply | None:
        """Execute a request and return its response, or None if the request has no response.

        Raises `UndecodableError`, or `CloseConnection` if the connection must be closed.
        """
        header, api = frame.header, frame.api
        if api is None:
            if header.api_key != ApiKey.API_VERSIONS:
                message = f"API {header.api_key} in version {header.version} is not answered"
                raise UndecodableError(message)
            return SentReply(encode_response(_VERSIONS_API, 0, header.correlation_id, unsupported_version()))
        request = decode_request(api, header.version, frame.body)
        access = self._broker.security.by_header([], client.address)
        call = KafkaCall(api, header, request, client, access)
        AUDITED_REQUEST.set(ref(call))
        try:
            reply = await self._execute[api.key](call)
        except (CloseConnection, UndecodableError):
            raise
        except Exception as error:
            self._broker.log.exception(
                "kafka request failed", api=api.name, version=header.version, client=client.address
            )
            raise CloseConnection from error
        if reply is None:
            return None
        try:
            buffers = encode_response(api, header.version, header.correlation_id, reply.response)
        except BaseException:
            reply.release()
            raise
        return SentReply(buffers, reply.release)
