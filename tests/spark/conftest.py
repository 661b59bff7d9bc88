"""Every test of this folder runs on a real Spark: one session for all of them, on two cores.

`bootstrap` is one broker on its embedded coordination, `three_brokers` a cluster of three, `three_on_etcd` a cluster of
three with a real etcd; `topic` is a name that no other test has.
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
"""A session takes a minute to start on a machine that does much else."""
_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them so: `make test-fast` needs no Java."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)
            # What pyspark and py4j leave open or call deprecated is not ours.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if item.get_closest_marker("timeout") is None:
                # The first one waits for the start of the session as well.
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run."""
    with running_session(str(tmp_path_factory.mktemp("spark"))) as session:
        yield session


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """One broker; topics are created when they are produced to."""
    with testing.running_cluster() as address:
        yield address


@pytest.fixture(scope="session")
def three_brokers() -> Iterator[str]:
    """A cluster of three brokers, started when the first test asks for it."""
    with testing.running_cluster(brokers=3) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def three_on_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of three brokers with an etcd, started when the first test asks for it."""
    with three_brokers_on_etcd(tmp_path_factory.mktemp("etcd")) as addresses:
        yield addresses


@pytest.fixture
def topic() -> str:
    """A name of a topic for one test."""
    return f"flights-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def hundred(bootstrap: str) -> str:
    """A topic of one partition with the values 0 to 99, a second apart, in ten stored batches."""
    return send_hundred(bootstrap)
