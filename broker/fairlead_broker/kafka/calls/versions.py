"""ApiVersions: the APIs and versions that the listener answers."""

from __future__ import annotations

from typing import Final

from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import APIS
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.messages import ApiVersionsResponse, Response

SOFTWARE_LENGTH_MAX: Final = 60
"""Maximum length of the name and the version of a client's software in metrics."""

FEATURES_SINCE: Final = 3
"""First version that states finalized features."""
FEATURES: Final = {"transaction.version": 2}
"""Level of each finalized feature. With version 2 of Kafka's transactions (KIP-890), clients that support it have an
epoch for each transaction."""


async def api_versions(call: KafkaCall) -> Reply:
    """Return the table of APIs, and remember the software of the client."""
    if call.version >= 3:
        name, version = call.request.client_software_name, call.request.client_software_version
        call.client.software = (str(name)[:SOFTWARE_LENGTH_MAX], str(version)[:SOFTWARE_LENGTH_MAX])
    return Reply(_table(call.version, KafkaError.NONE))


def unsupported_version() -> Response:
    """Return the response to a request of an unknown version, encoded in version 0."""
    return _table(0, KafkaError.UNSUPPORTED_VERSION)


def _table(version: int, error: KafkaError) -> Response:
    keys = [
        ApiVersionsResponse.ApiVersion(
            version=version, api_key=api.key, min_version=api.first, max_version=api.last
        )
        for api in APIS.values()
    ]
    response = ApiVersionsResponse(version=version, error_code=error, api_keys=keys)
    if version >= FEATURES_SINCE:
        response.finalized_features_epoch = 0
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(
                version=version, name=name, max_version_level=level, min_version_level=level
            )
            for name, level in FEATURES.items()
        ]
    answer: Response = response
    return answer
