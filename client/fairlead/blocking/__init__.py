"""The SDK for programs without an event loop: producer, consumer, table, admin client and `exactly_once`, blocking.

    from fairlead.blocking import Consumer, Producer

    with Producer("http://127.0.0.1:9520") as producer:
        producer.send("flights", b"UA1545", key=b"UA").result()

Each client runs an async client on an event loop in its own thread, so that linger, retries and heartbeats continue
while the program does other work. Arguments, results and errors are the same as in the async clients, but a delivery
has `result()` instead of `await`. Several threads may share a client.
"""

from fairlead.blocking.admin import Admin
from fairlead.blocking.consumer import Consumer
from fairlead.blocking.consuming_transactions import ConsumingTransaction, exactly_once
from fairlead.blocking.producer import BatchDelivery, Delivery, Producer
from fairlead.blocking.table import Table

__all__ = [
    "Admin",
    "BatchDelivery",
    "Consumer",
    "ConsumingTransaction",
    "Delivery",
    "Producer",
    "Table",
    "exactly_once",
]
