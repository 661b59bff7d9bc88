"""A program that uses the SDK without an event loop; type checkers read the program, and no test runs it."""

from __future__ import annotations

from typing import assert_type

from fairlead import BatchMetadata, ConsumerBatch, Record, RecordMetadata, TopicPartition
from fairlead.blocking import Admin, BatchDelivery, Consumer, Delivery, Producer
from fairlead.testing import running_cluster
from fairlead_api.bodies.metadata import TopicDescription


def produce(bootstrap: str) -> None:
    """Produce, and wait for the `result` of a delivery."""
    with Producer(bootstrap, acks="all", compression="lz4", delivery_timeout="30s") as producer:
        assert_type(producer, Producer)
        delivery = producer.send("flights", b"1545", key=b"UA")
        assert_type(delivery, Delivery)
        assert_type(delivery.result(timeout=5), RecordMetadata)
        assert_type(delivery.result().offset, int)
        producer.flush()


def consume(bootstrap: str) -> None:
    """Consume with plain loops."""
    with Consumer(bootstrap, group="readers", topics=["flights"]) as consumer:
        for batch in consumer:
            assert_type(batch, ConsumerBatch)
            consumer.commit()
        for record in consumer.records():
            assert_type(record, Record)
        assert_type(consumer.next_batch("1s"), ConsumerBatch | None)
        assert_type(consumer.committed(), dict[TopicPartition, int | None])


def administer(bootstrap: str) -> None:
    """Make the calls of the asynchronous admin client, with the same types of answers."""
    with Admin(bootstrap) as admin:
        assert_type(admin.create_topic("flights", partitions=3), TopicDescription)
        assert_type(admin.list_topics(), list[TopicDescription])


def in_a_test(piece: BatchDelivery) -> None:
    """Use a test cluster by its address."""
    with running_cluster(brokers=3, config={"min.insync.replicas": 2}) as bootstrap:
        assert_type(bootstrap, str)
    assert_type(piece.result(), BatchMetadata)
