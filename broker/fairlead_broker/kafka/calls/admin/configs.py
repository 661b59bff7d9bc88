"""Configuration of topics, brokers and the cluster: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.requests import AlterConfigRequest, AlterTopicRequest
from fairlead_api.configuration import (
    FEATURE_LEVEL_KEY,
    KEYS,
    ConfigEntry,
    ConfigInput,
    ConfigScope,
    ConfigSource,
    merge_patch,
)
from fairlead_api.identifiers import BrokerId
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.admin.config_sources import (
    DEFAULT_SOURCE,
    LIST_KEYS,
    SOURCES,
    is_read_only,
    shown_entries,
    type_of,
)
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import RefusedError, answering
from fairlead_broker.kafka.calls.repetitions import check_single, counted
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError
from fairlead_broker.kafka.protocol.messages import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.configs import differences
from fairlead_broker.runtime.security_mode import check_security_change

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_ID_MAX: Final = 2**31 - 1
Patch = Mapping[str, ConfigInput]


class AlterOperation(IntEnum):
    """Operation on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class _Resource:
    """Topic, broker or cluster with a configuration."""

    scope: ConfigScope
    entries: Callable[[], Mapping[str, ConfigEntry]]
    """Function that returns the effective configuration."""
    change: Callable[[Patch], Change]
    """Function that returns the change that a merge patch makes."""


class ConfigCalls:
    """Calls that describe and change configurations."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter_incrementally,
            ApiKey.ALTER_CONFIGS: self.replace,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_resources,
        }

    # -- descriptions

    async def describe(self, call: KafkaCall) -> Reply:
        """Return configurations with the source of each value."""
        results = []
        for wanted, count in counted(call.request.resources, _named):
            result = DescribeConfigsResponse.DescribeConfigsResult(
                version=call.version,
                error_code=KafkaError.NONE,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                configs=[],
            )
            with answering(result, _family(wanted)):
                check_single(count, f"resource {wanted.resource_name}")
                resource = self._resource(call, wanted, Operation.DESCRIBE)
                keys = wanted.configuration_keys
                result.configs = [
                    _described(call, name, entry)
                    for name, entry in shown_entries(resource.entries())
                    if not keys or name in keys
                ]
            results.append(result)
        return Reply(DescribeConfigsResponse(version=call.version, results=results))

    async def list_resources(self, call: KafkaCall) -> Reply:
        """Return the topics and brokers whose configuration the caller may describe; version 0 returns none of them."""
        wanted = set(call.request.resource_types) if call.version >= 1 else set()
        if call.version >= 1 and not wanted:
            wanted = {TOPIC_RESOURCE, BROKER_RESOURCE}
        found: list[tuple[int, str]] = []
        if TOPIC_RESOURCE in wanted:
            views = self._broker.views.all()
            found += [
                (TOPIC_RESOURCE, view.name) for view in views if call.access.sees(Kind.TOPIC, view.name)
            ]
        if BROKER_RESOURCE in wanted and call.access.sees(Kind.CLUSTER, SINGLE_NAME):
            found += [(BROKER_RESOURCE, str(each)) for each in sorted(self._broker.metadata.brokers)]
        return Reply(
            ListConfigResourcesResponse(
                version=call.version,
                error_code=KafkaError.NONE,
                config_resources=[
                    ListConfigResourcesResponse.ConfigResource(
                        version=call.version, resource_name=name, resource_type=kind
                    )
                    for kind, name in found
                ],
            )
        )

    # -- changes

    async def alter_incrementally(self, call: KafkaCall) -> Reply:
        """Set, reset and extend keys; keys that the request does not name are unchanged."""
        return await self._alter(call, IncrementalAlterConfigsResponse, _merged)

    async def replace(self, call: KafkaCall) -> Reply:
        """Replace configurations; keys that the request does not name are reset."""
        return await self._alter(call, AlterConfigsResponse, _replacing)

    async def _alter(
        self, call: KafkaCall, kind: Any, patch_of: Callable[[_Resource, list[Any]], Patch]
    ) -> Reply:
        responses = []
        for wanted, count in counted(call.request.resources, _named):
            response = kind.AlterConfigsResourceResponse(
                version=call.version,
                error_code=KafkaError.NONE,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
            )
            with answering(response, _family(wanted)):
                check_single(count, f"resource {wanted.resource_name}")
                resource = self._resource(call, wanted, Operation.ALTER)
                patch = patch_of(resource, wanted.configs)
                if resource.scope is ConfigScope.CLUSTER:
                    check_security_change(self._broker.feature_level, call.access, patch)
                if call.request.validate_only:
                    merge_patch(_stored(resource), patch, resource.scope)
                elif patch:
                    await self._changes.make(call, resource.change(patch))
            responses.append(response)
        return Reply(kind(version=call.version, responses=responses))

    # -- resources

    def _resource(self, call: KafkaCall, wanted: Any, operation: Operation) -> _Resource:
        """Return the resource of a request that the caller may use. Raises RefusedError or a problem."""
        name = wanted.resource_name
        if wanted.resource_type == TOPIC_RESOURCE:
            call.access.require(operation, Kind.TOPIC, name)
            view = self._broker.views.by_name(name)
            return _Resource(
                ConfigScope.TOPIC,
                lambda: self._broker.views.by_name(view.name).config_entries,
                partial(self._topic_change, view.name),
            )
        if wanted.resource_type != BROKER_RESOURCE:
            raise RefusedError(
                KafkaError.INVALID_REQUEST,
                f"resources of type {wanted.resource_type} have no configuration; "
                f"allowed are topics ({TOPIC_RESOURCE}) and brokers ({BROKER_RESOURCE})",
            )
        call.access.require(operation, Kind.CLUSTER, SINGLE_NAME)
        if not name:
            return _Resource(ConfigScope.CLUSTER, self._broker.configs.of_cluster, self._cluster_change)
        # Leading zeros would give one broker any number of names.
        is_number = name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0"))
        if not is_number or int(name[:11]) > BROKER_ID_MAX:
            raise RefusedError(KafkaError.INVALID_REQUEST, f"broker {name[:80]} is not a number")
        broker = BrokerId(int(name))
        self._broker.config_admin.check_broker(broker)
        return _Resource(
            ConfigScope.BROKER,
            partial(self._broker.broker_config, broker),
            partial(self._broker_change, broker),
        )

    def _topic_change(self, topic: str, patch: Patch) -> Change:
        request = AlterTopicRequest(config=dict(patch))

        async def run() -> Changed:
            before = dict(self._broker.views.by_name(topic).config_entries)
            view = await self._broker.alter_topic(topic, request)
            return Changed(audited={"config": differences(before, dict(view.config_entries))})

        return Change("alter_topic", {"topic": topic}, run, request)

    def _broker_change(self, broker: BrokerId, patch: Patch) -> Change:
        async def run() -> Changed:
            before = self._broker.broker_config(broker)
            after = await self._broker.alter_broker_config(broker, patch)
            return Changed(audited={"config": differences(before, after)})

        return Change(
            "alter_broker_config", {"broker": str(broker)}, run, AlterConfigRequest(config=dict(patch))
        )

    def _cluster_change(self, patch: Patch) -> Change:
        async def run() -> Changed:
            before = self._broker.configs.of_cluster()
            after = await self._broker.alter_cluster_config(patch)
            return Changed(audited={"config": differences(before, after)})

        return Change("alter_cluster_config", {}, run, AlterConfigRequest(config=dict(patch)))


def _described(call: KafkaCall, name: str, entry: ConfigEntry) -> Any:
    """Return an entry of a configuration, with the values that would apply if it were reset."""
    kind = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    source, key = SOURCES[entry.source], KEYS[name]
    values = [(entry.value, source)]
    if source != DEFAULT_SOURCE and key.default is not None:
        values.append((key.default, DEFAULT_SOURCE))
    return kind(
        version=call.version,
        name=name,
        value=entry.value,
        read_only=is_read_only(name),
        config_source=source,
        is_sensitive=False,
        synonyms=[
            kind.DescribeConfigsSynonym(version=call.version, name=name, value=value, source=number)
            for value, number in values
        ]
        if call.request.include_synonyms
        else [],
        config_type=type_of(name),
        documentation=key.explanation if call.version >= 3 and call.request.include_documentation else None,
    )


def _merged(resource: _Resource, configs: list[Any]) -> Patch:
    """Return the merge patch of operations on single keys. Raises RefusedError."""
    patch: dict[str, ConfigInput] = {}
    for each in configs:
        if each.name in patch:
            raise RefusedError(KafkaError.INVALID_REQUEST, f"the request names {each.name[:80]} twice")
        match each.config_operation:
            case AlterOperation.SET:
                patch[each.name] = _value(each)
            case AlterOperation.DELETE:
                patch[each.name] = None
            case AlterOperation.APPEND | AlterOperation.SUBTRACT:
                patch[each.name] = _extended(resource, each)
            case unknown:
                raise RefusedError(
                    KafkaError.INVALID_REQUEST, f"operation {unknown} is not known; allowed are 0 to 3"
                )
    return patch


def _replacing(resource: _Resource, configs: list[Any]) -> Patch:
    """Return the merge patch that leaves only the given keys set."""
    patch: dict[str, ConfigInput] = {
        name: None for name in _stored(resource) if not is_read_only(name) and name != FEATURE_LEVEL_KEY
    }
    return {**patch, **{each.name: _value(each) for each in configs}}


def _value(wanted: Any) -> str:
    if wanted.value is None:
        raise RefusedError(KafkaError.INVALID_CONFIG, f"configuration key {wanted.name[:80]} has no value")
    value: str = wanted.value
    return value


def _extended(resource: _Resource, wanted: Any) -> str:
    """Return the value of a list with elements added or removed. Raises RefusedError."""
    if wanted.name not in LIST_KEYS:
        allowed = ", ".join(sorted(LIST_KEYS))
        raise RefusedError(
            KafkaError.INVALID_CONFIG,
            f"configuration key {wanted.name[:80]} is not a list; the list keys are {allowed}",
        )
    elements = [each.strip() for each in _value(wanted).split(",")]
    entry = resource.entries().get(wanted.name)
    current = [] if entry is None else [each.strip() for each in entry.value.split(",")]
    if wanted.config_operation == AlterOperation.SUBTRACT:
        return ",".join(each for each in current if each not in elements)
    return ",".join(dict.fromkeys([*current, *elements]))


def _stored(resource: _Resource) -> dict[str, str]:
    """Return the values that are set on the resource itself."""
    own = ConfigSource(resource.scope.value)
    return {name: entry.value for name, entry in resource.entries().items() if entry.source is own}


def _named(wanted: Any) -> tuple[int, str]:
    return wanted.resource_type, wanted.resource_name


def _family(wanted: Any) -> Family:
    return Family.TOPIC if wanted.resource_type == TOPIC_RESOURCE else Family.ADMIN
