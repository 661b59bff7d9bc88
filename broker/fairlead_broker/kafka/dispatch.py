"""Execution of requests: decodes each request, passes it to the family of its API, and encodes the response.

`connection` calls `Dispatch.serve` for each frame. Unknown APIs and versions close the connection, except ApiVersions,
which is answered in version 0 so that a client finds out which versions the listener answers (KIP-511).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import ref

from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.admin.changes import Changes
from fairlead_broker.kafka.calls.admin.cluster import ClusterCalls
from fairlead_broker.kafka.calls.admin.configs import ConfigCalls
from fairlead_broker.kafka.calls.admin.partitions import PartitionCalls
from fairlead_broker.kafka.calls.admin.records import RecordCalls
from fairlead_broker.kafka.calls.admin.topics import TopicCalls
from fairlead_broker.kafka.calls.call import Client, CloseConnection, KafkaCall
from fairlead_broker.kafka.calls.callers import Callers
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
from fairlead_broker.kafka.calls.sasl import SaslCalls
from fairlead_broker.kafka.calls.transaction_listing import TransactionListingCalls
from fairlead_broker.kafka.calls.transaction_sessions import TransactionSessions
from fairlead_broker.kafka.calls.transactions import TransactionCalls
from fairlead_broker.kafka.calls.versions import api_versions, unsupported_version
from fairlead_broker.kafka.protocol.apis import APIS, ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.frames import Frame
from fairlead_broker.kafka.protocol.messages import UndecodableError, decode_request, encode_response
from fairlead_broker.kafka.request_metrics import CLOSED, RequestMetrics
from fairlead_broker.kafka.throttling import PUBLIC_APIS, Throttling
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.audit_log import AUDITED_REQUEST

Execute = Callable[[KafkaCall], Awaitable[Reply | None]]
_VERSIONS_API: Final = APIS[ApiKey.API_VERSIONS]


@dataclass(slots=True)
class SentReply:
    """Response of one request as bytes."""

    buffers: Sequence[bytes | bytearray | memoryview]
    reply: Reply | None = None
    """Reply whose resources the response holds; None if it holds none."""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after the response."""
        return self.reply is not None and self.reply.closes

    def waits(self, cut: Callable[[], None]) -> None:
        """Note that the response waits for its client to read; `cut` closes the connection."""
        if self.reply is not None:
            self.reply.waits(cut)

    def sent(self) -> None:
        """Release the resources of the response."""
        if self.reply is not None:
            self.reply.release()


class Dispatch:
    """Executes the requests of all connections."""

    def __init__(self, broker: Broker, new_id: Callable[[], str]) -> None:
        """`new_id` returns a random UUID."""
        self._broker = broker
        self._callers = Callers(broker.security)
        self._throttling = Throttling(broker.quotas)
        self._metrics = RequestMetrics(broker.telemetry)
        changes = Changes(broker)
        sessions = TransactionSessions(broker, changes.forwarded)
        self._execute: Mapping[ApiKey, Execute] = {
            ApiKey.API_VERSIONS: api_versions,
            **SaslCalls(broker, self._callers).calls(),
            **MetadataCalls(broker, changes).calls(),
            **ProduceCalls(broker, sessions).calls(),
            **FetchCalls(broker, new_id).calls(),
            **OffsetCalls(broker).calls(),
            **ProducerCalls(broker, sessions).calls(),
            **TransactionCalls(broker, sessions).calls(),
            **TransactionListingCalls(broker).calls(),
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

    def client(self, address: str, port: int, names: Sequence[tuple[str, str]]) -> Client:
        """Return the client of a new connection; `names`: kind and value of each name in its verified certificate."""
        return self._callers.client(address, port, names)

    def gone(self, client: Client) -> None:
        """Forget the client of a connection that has ended."""
        self._metrics.gone(client)

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
        begun, error = self._broker.clock.monotonic(), CLOSED
        request = decode_request(api, header.version, frame.body)
        call = KafkaCall(api, header, request, client, self._callers.without_token(client))
        AUDITED_REQUEST.set(ref(call))
        try:
            await self._admit(call)
            reply, sent = await self._executed(call, frame.nbytes)
            error = _error_of(reply)
        finally:
            self._metrics.observe(api.name, header.version, error, self._broker.clock.monotonic() - begun)
        self._metrics.arrived(client)
        return sent

    async def _admit(self, call: KafkaCall) -> None:
        """Set the access of a call according to the token of its connection.

        Raises CloseConnection for a token that is no longer accepted, and for a client that must authenticate first.
        """
        if call.api.key in PUBLIC_APIS:
            return
        token = call.client.token
        if token is not None:
            try:
                call.access = await self._callers.of_token(token, call.client.address)
            except ProblemError as problem:
                raise CloseConnection(problem.detail) from problem
        if call.access.is_stranger:
            message = f"{call.api.name} needs a token; the client has to authenticate with SASL"
            raise CloseConnection(message)
        call.client.is_known = True

    async def _executed(self, call: KafkaCall, nbytes: int) -> tuple[Reply | None, SentReply | None]:
        """Return the reply of a call, and its bytes; `nbytes`: size of the request."""
        quota = await self._throttling.begin(call, nbytes)
        try:
            reply = await self._execute[call.api.key](call)
        except (CloseConnection, UndecodableError):
            raise
        except Exception as error:
            self._broker.log.exception(
                "kafka request failed",
                api=call.api.name,
                version=call.version,
                client=call.client.address,
            )
            message = f"{call.api.name} {call.version} failed"
            raise CloseConnection(message) from error
        finally:
            if quota is not None:
                self._throttling.end(quota, call)
        if reply is None:
            return None, None
        try:
            if quota is not None:
                self._throttling.state_wait(quota, call, reply)
            buffers = encode_response(call.api, call.version, call.header.correlation_id, reply.response)
        except BaseException:
            reply.release()
            raise
        return reply, SentReply(buffers, reply)


def _error_of(reply: Reply | None) -> str:
    """Return the name of the error of a reply, for metrics."""
    if reply is None:
        return KafkaError.NONE.name
    error = getattr(reply.response, "error_code", KafkaError.NONE) if reply.error is None else reply.error
    return KafkaError(error).name
