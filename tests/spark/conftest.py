"""Fixtures for tests on a real Spark: all tests share one session with two cores.

The fixture `bootstrap` is a broker with embedded coordination, `three_brokers` is a cluster of three brokers, and
`three_on_etcd` is a cluster of three brokers with a real etcd. The fixture `topic` is a name that no other test uses.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_on_etcd import three_brokers_on_etcd
from fairlead import testing
from source_records import send_hundred
from spark_session import running_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
TIMEOUT_SECONDS = 600
"""Time limit of a test; a session takes a minute to start on a busy machine."""
_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks `spark` and `slow`, since `make test-fast` runs without Java."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)
            # Ignore resource and deprecation warnings that PySpark and Py4J cause.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if item.get_closest_marker("timeout") is None:
                # The time limit of the first test includes the start of the session.
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the Spark session that all tests share."""
    with running_session(str(tmp_path_factory.mktemp("spark"))) as session:
        yield session


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Yield the address of a broker that creates topics when records are sent to them."""
    with testing.running_cluster() as address:
        yield address


@pytest.fixture(scope="session")
def three_brokers() -> Iterator[str]:
    """Yield the addresses of a cluster of three brokers, which starts with the first test that uses it."""
    with testing.running_cluster(brokers=3) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def three_on_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the addresses of a cluster of three brokers with an etcd, which starts with the first test that uses it."""
    with three_brokers_on_etcd(tmp_path_factory.mktemp("etcd")) as addresses:
        yield addresses


@pytest.fixture
def topic() -> str:
    """Return a topic name that no other test uses."""
    return f"flights-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def hundred(bootstrap: str) -> str:
    """Create a topic with one partition and the values 0 to 99, one second apart, in ten stored batches."""
    return send_hundred(bootstrap)
