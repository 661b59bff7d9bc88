"""Plugin of pytest that runs kafka-python's integration tests against brokers that run already.

The source distribution lacks the file that makes the folder `test` a package, and the module `test.service`, in which
the tests start Apache Kafka; the plugin replaces both. Topics of the tests have four partitions, as with the brokers
that the tests start themselves. The plugin must not change or skip any test.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

PARTITIONS = 4


class ExternalService:
    """Broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def open(self) -> None:
        """Use the broker."""

    def close(self) -> None:
        """Leave the broker running."""

    def dump_logs(self) -> None:
        """Leave out the logs, which the broker writes elsewhere."""


class SpawnedService:
    """Process of Apache Kafka, which these runs do not have."""

    def __init__(self, *_: object) -> None:
        message = "this test starts Apache Kafka"
        raise RuntimeError(message)


def _provide_modules() -> None:
    """Provide the modules that the source distribution in the current folder lacks."""
    tests, service = ModuleType("test"), ModuleType("test.service")
    tests.__path__ = [str(Path.cwd() / "test")]
    vars(service).update(ExternalService=ExternalService, SpawnedService=SpawnedService)
    sys.modules.update({"test": tests, "test.service": service})


def _set_partitions() -> None:
    from test.integration.fixtures import KafkaFixture  # type: ignore[import-not-found]

    begin = KafkaFixture.__init__

    def with_partitions(self: object, *arguments: object, **options: object) -> None:
        begin(self, *arguments, **{**options, "partitions": PARTITIONS})

    KafkaFixture.__init__ = with_partitions


# Pytest imports this plugin before the fixtures of the tests, and calls its functions after them.
_provide_modules()
_set_partitions()
