"""Runs clients of Kafka's protocol against three brokers with etcd, and prints a JSON report.

    python tests/kafka_clients/kafka_clients.py [--only NAME ...] [--count 100]

The report contains each client with its version, the steps that passed, and the message of a client that failed or
cannot run on this machine. The exit code is 1 unless each client passed. `make prove PROVE=kafka-clients` records the
report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog

TESTS: Final = Path(__file__).parents[1]
for part in ("plugins", "plugins/brokers", "plugins/programs", "faults", "checker", "etcd", "chaos"):
    sys.path.insert(0, str(TESTS / part))

from client_programs import go_clients, kcat_clients, node_clients, python_clients
from client_steps import Client, ClientFailed, ClientMissing, Target
from data_programs import data_clients
from java_clients import java_clients
from screen_clients import screen_clients

from chaos_cluster import ChaosCluster, call, chaos_cluster, http_client

PARTITIONS: Final = 4
BROKERS_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.5
ENVIRONMENT: Final = {"FAIRLEAD_CONFIG_VALUES": json.dumps({"auto.create.topics.enable": True})}


def clients() -> list[Client]:
    """Return every client."""
    return [
        *python_clients(),
        *go_clients(),
        *node_clients(),
        *kcat_clients(),
        *java_clients(),
        *data_clients(),
        *screen_clients(),
    ]


def run(client: Client, target: Target) -> dict[str, Any]:
    """Run the steps of a client; return the report on the client."""
    steps: list[str] = []
    begun = time.monotonic()
    report = {"client": client.name, "version": client.version, "steps": steps, "passed": False}
    try:
        steps.extend(client.steps(target))
    except ClientMissing as missing:
        report["message"] = f"not run: {missing}"
    except (ClientFailed, AssertionError) as failed:
        report["message"] = str(failed)
    else:
        report["passed"] = True
    return {**report, "seconds": round(time.monotonic() - begun, 1)}


async def run_all(wanted: list[Client], count: int) -> list[dict[str, Any]]:
    """Run each client with a separate topic and group; return the reports."""
    with tempfile.TemporaryDirectory() as folder:
        async with chaos_cluster(Path(folder), relayed=False, kafka=True, environment=ENVIRONMENT) as cluster:
            reports = []
            for number, client in enumerate(wanted):
                target = Target(cluster.kafka_bootstrap, f"topic-{number}", f"group-{number}", count)
                await create_topic(cluster, target.topic)
                reports.append(await asyncio.to_thread(run, client, target))
                print(f"{client.name} {client.version}: {reports[-1]}", file=sys.stderr, flush=True)
            return reports


async def create_topic(cluster: ChaosCluster, name: str) -> None:
    """Create a topic with three replicas of each partition, and wait for its leaders.

    On a loaded machine, a broker may lose its lease for a moment, and the creation is refused until it is back.
    """
    body = {"name": name, "partitions": PARTITIONS, "replication_factor": 3}
    deadline = time.monotonic() + BROKERS_SECONDS_MAX
    async with http_client() as client:
        while True:
            answer = await call(client, "POST", f"{cluster.urls[0]}/v1/topics", body)
            if answer.status == HTTPStatus.CREATED or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)  # noqa: TID251 - the interval of the attempts
    assert answer.status == HTTPStatus.CREATED, answer.json
    await cluster.wait_for_partitions(name, lambda each: each.leader is not None)


def main(arguments: list[str]) -> int:
    """Run the named clients, or all clients; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="parts of names of clients")
    parser.add_argument("--count", type=int, default=100, help="records to produce with each codec")
    options = parser.parse_args(arguments)
    # Standard output contains the report alone.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    wanted = [
        each
        for each in clients()
        if not options.only or any(part.lower() in each.name.lower() for part in options.only)
    ]
    reports = asyncio.run(run_all(wanted, options.count))
    print(json.dumps({"brokers": 3, "records_for_each_codec": options.count, "clients": reports}, indent=2))
    return int(not all(each["passed"] for each in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
