"""Values for tests of the operator's plans, with defaults: pods, StatefulSets, claims and answers from brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fairlead_api.bodies.metadata import BrokerDescription, Metadata, PartitionMetadata, TopicMetadata
from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_operator.plan.observed import BrokersAnswer, ObservedClaim, ObservedPod, ObservedSet
from fairlead_operator.plan.roll import Wanted

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
NEW = Wanted(pod_spec_hash="spec-2", config_hash="config-2")


def pod(broker: int, **said: Any) -> ObservedPod:
    """Return a ready pod of pool `a` with the newest template; `said` overrides fields."""
    facts: dict[str, Any] = {
        "name": f"main-a-{broker}",
        "uid": f"uid-{broker}",
        "pool": "a",
        "broker": broker,
        "created": "2026-05-04T11:00:00Z",
        "ready": True,
        "pod_spec_hash": NEW.pod_spec_hash,
        "config_hash": NEW.config_hash,
    }
    return ObservedPod(**{**facts, **said})


def old_pod(broker: int, **said: Any) -> ObservedPod:
    """Return a pod with an older template."""
    return pod(broker, **{"pod_spec_hash": "spec-1", **said})


def stateful_set(replicas: int, **said: Any) -> ObservedSet:
    """Return the StatefulSet of pool `a`."""
    facts: dict[str, Any] = {
        "name": "main-a",
        "uid": "uid-a",
        "pool": "a",
        "first_broker": 0,
        "replicas": replicas,
        "storage_size": "10Gi",
        "pod_spec_hash": NEW.pod_spec_hash,
        "config_hash": NEW.config_hash,
    }
    return ObservedSet(**{**facts, **said})


def claim(broker: int, **said: Any) -> ObservedClaim:
    """Return the volume claim of a broker of pool `a`."""
    facts: dict[str, Any] = {
        "name": f"data-main-a-{broker}",
        "uid": f"claim-{broker}",
        "pool": "a",
        "broker": broker,
        "requested": "10Gi",
        "capacity": "10Gi",
    }
    return ObservedClaim(**{**facts, **said})


def answer(
    brokers: Iterable[int | BrokerDescription],
    *,
    controller: int | None = None,
    topics: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
    config: Mapping[str, str] | None = None,
) -> BrokersAnswer:
    """Return the brokers' answers to a pass. `topics`: fields of each partition, by topic; None if not requested."""
    described = [each if isinstance(each, BrokerDescription) else described_broker(each) for each in brokers]
    entries = {
        "retention.ms": ConfigEntry("604800000", ConfigSource.DEFAULT),
        "num.partitions": ConfigEntry("1", ConfigSource.DEFAULT),
    }
    entries |= {name: ConfigEntry(value, ConfigSource.CLUSTER) for name, value in (config or {}).items()}
    return BrokersAnswer(
        cluster_id="id-of-main",
        controller=controller,
        release="1.2.0",
        feature_level=1,
        brokers={each.id: each for each in described},
        config=entries,
        metadata=None if topics is None else metadata(topics, described),
    )


def described_broker(broker: int, **said: Any) -> BrokerDescription:
    """Return a running broker; `said` overrides fields."""
    return BrokerDescription(**{"id": broker, "address": f"http://broker-{broker}:9520", **said})


def gone_broker(broker: int, **said: Any) -> BrokerDescription:
    """Return a broker that is not registered."""
    return described_broker(broker, **{"address": None, "state": "gone", **said})


def metadata(
    topics: Mapping[str, Iterable[Mapping[str, Any]]], brokers: Iterable[BrokerDescription] = ()
) -> Metadata:
    """Return metadata of topics: each partition is given by fields, at least `replicas`, and is in sync by default."""
    return Metadata(
        cluster_id="id-of-main",
        controller=None,
        brokers=[each for each in brokers if each.state != "gone"],
        topics=[
            TopicMetadata(
                name=name,
                topic_id=f"id-of-{name}",
                partitions=[
                    PartitionMetadata(
                        **{
                            "partition": index,
                            "leader": said["replicas"][0],
                            "leader_epoch": 1,
                            "isr": said["replicas"],
                            "elr": [],
                            "offline": [],
                            **said,
                        }
                    )
                    for index, said in enumerate(partitions)
                ],
            )
            for name, partitions in topics.items()
        ],
    )
