"""Every example of the docs is run by a test, or this file gives the reason why no test can run it."""

from __future__ import annotations

from typing import Final

import checkout
from default_tests import run_by_default
from page_kit import blocks

EXECUTABLE: Final = ("sh", "bash", "console", "python", "yaml")
GENERATED: Final = ("changes", "decisions", "proof")

_CLI, _CLIENT = "tests/integration/cli", "tests/integration/client"
_CONTROL_PLANE = "tests/kubernetes/charts/test_docs_kubernetes.py"
RUN_BY: Final[dict[tuple[str, str], str]] = {
    ("explanation/quorum.md", "console"): f"{_CLI}/test_cluster.py",
    ("how-to/clusters.md", "console"): f"{_CLI}/test_clusters_how_to.py",
    ("how-to/containers.md", "yaml"): "tests/kubernetes/charts/test_containers_page.py",
    ("how-to/delivery-guarantees.md", "python"): "tests/recipes/recipe_page.py",
    ("how-to/compaction.md", "python"): f"{_CLIENT}/test_tables.py",
    ("how-to/disk-faults.md", "sh"): f"{_CLI}/test_disk_faults_how_to.py",
    ("how-to/from-kafka.md", "sh"): f"{_CLI}/test_from_kafka_how_to.py",
    ("how-to/groups.md", "python"): f"{_CLIENT}/groups/test_groups_how_to.py",
    ("how-to/groups.md", "sh"): f"{_CLIENT}/groups/test_groups_how_to.py",
    ("how-to/http.md", "sh"): "tests/integration/http/pages/test_how_to.py",
    ("how-to/kubernetes-backup.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-backup.md", "yaml"): _CONTROL_PLANE,
    ("how-to/kubernetes-clusters.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-clusters.md", "yaml"): _CONTROL_PLANE,
    ("how-to/kubernetes-external-access.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-install.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-links.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-links.md", "yaml"): _CONTROL_PLANE,
    ("how-to/kubernetes-rebalance.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-rebalance.md", "yaml"): _CONTROL_PLANE,
    ("how-to/kubernetes-topics.md", "sh"): _CONTROL_PLANE,
    ("how-to/kubernetes-topics.md", "yaml"): _CONTROL_PLANE,
    ("how-to/kubernetes-troubleshooting.md", "sh"): _CONTROL_PLANE,
    ("how-to/lake.md", "python"): "tests/spark/lake/test_lake_page.py",
    ("how-to/lake.md", "sh"): "tests/spark/lake/test_lake_page.py",
    ("how-to/observability.md", "python"): f"{_CLIENT}/test_tracing_how_to.py",
    ("how-to/observability.md", "sh"): "tests/observability/test_observability_how_to.py",
    ("how-to/observability.md", "yaml"): "tests/observability/test_observability_how_to.py",
    ("how-to/links.md", "console"): "tests/integration/links/test_links_how_to.py",
    ("how-to/operations.md", "console"): f"{_CLI}/test_operations_how_to.py",
    ("how-to/pipelines.md", "python"): "tests/spark/pipelines/test_pipeline_page.py",
    ("how-to/retention.md", "sh"): "tests/integration/retention/test_how_to.py",
    ("how-to/sdk.md", "python"): f"{_CLIENT}/test_how_to.py",
    ("how-to/quotas.md", "sh"): "tests/security/test_commands.py",
    ("how-to/security-on-kubernetes.md", "sh"): _CONTROL_PLANE,
    ("how-to/security-on-kubernetes.md", "yaml"): _CONTROL_PLANE,
    ("how-to/security.md", "python"): "tests/security/tls/test_page.py",
    ("how-to/security.md", "sh"): "tests/security/tls/test_page.py",
    ("how-to/spark-on-kubernetes.md", "sh"): _CONTROL_PLANE,
    ("how-to/spark.md", "python"): "tests/spark/test_spark_page.py",
    ("how-to/spark.md", "sh"): "tests/spark/test_spark_page.py",
    ("tutorial/flights.md", "console"): f"{_CLI}/test_flights_page.py",
    ("tutorial/flights.md", "python"): f"{_CLI}/test_flights_page.py",
    ("tutorial/quick-start.md", "console"): f"{_CLI}/test_quick_start.py",
    ("tutorial/quick-start.md", "python"): f"{_CLI}/test_quick_start.py",
}
"""Test that runs the code blocks of a page in one language, by page and language."""

NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("benchmarks.md", "console"): "measures for minutes to hours",
    ("explanation/simulation.md", "console"): "searches for minutes; tests run the same program briefly",
    (
        "how-to/compaction.md",
        "sh",
    ): "creates a topic and writes records, as the test of the page's program also does",
    ("how-to/console.md", "sh"): "queries a package index; the tests of the console start it",
    ("how-to/containers.md", "console"): "needs a container engine, or root to make the image",
    ("how-to/delivery-guarantees.md", "sh"): "creates a topic, as the tests of the recipes also do",
    ("how-to/from-kafka.md", "python"): "reads from Apache Kafka, which only benchmarks start",
    ("how-to/install.md", "console"): "queries a package index, which no test may need",
    (
        "how-to/kafka-move.md",
        "sh",
    ): "needs Apache Kafka; the scenario tests/spark/pipelines/test_from_kafka.py runs its commands",
    ("how-to/kubernetes-backup.md", "console"): "deletes the data of etcd; test_pods_backup.py restores one",
    (
        "how-to/kubernetes-external-access.md",
        "console",
    ): "needs a second network; test_external_access.py makes one",
    ("how-to/kubernetes-install.md", "console"): "deletes every claim of a namespace",
    ("how-to/observability.md", "console"): "upgrades an operator; the chart's tests render the values",
    ("how-to/pipelines.md", "sh"): "bundled pipelines have their own tests, as does the page's",
    ("how-to/security.md", "console"): "needs a second machine",
    ("how-to/spark.md", "console"): "starts a Spark with a metastore of its own in the working folder",
    ("how-to/spark-on-kubernetes.md", "console"): "needs a container engine and a public image",
    ("how-to/transactions.md", "python"): "tests/integration/transactions/test_how_to.py",
    ("how-to/transactions.md", "sh"): "tests/integration/transactions/test_how_to.py",
    ("reference/command-line.md", "sh"): "made from the help of each command, which a test parses",
    ("reference/conditions.md", "bash"): "looks at objects; the how-tos have the same commands",
}
"""Reason why no test runs the code blocks of a page in one language unchanged, by page and language."""


def examples() -> set[tuple[str, str]]:
    """Return the pages that have commands or manifests, and their languages."""
    found = set()
    for path in checkout.files():
        if path.suffix != ".md" or path.parts[0] != "docs" or path.parts[1] in GENERATED:
            continue
        page = path.relative_to("docs").as_posix()
        text = (checkout.ROOT / path).read_text(encoding="utf-8")
        found |= {(page, block.language) for block in blocks(text, *EXECUTABLE)}
    return found


def test_every_example_is_run_or_has_a_reason() -> None:
    """The code blocks of each page and language have either a test or a reason here, and no entry is superfluous."""
    assert not RUN_BY.keys() & NOT_RUN.keys()
    assert examples() == RUN_BY.keys() | NOT_RUN.keys()


def test_every_test_that_is_named_reads_its_page() -> None:
    """Every named test exists and contains the page's name, without the prefix `kubernetes-` if the name has it."""
    wrong = []
    for (page, _), test in RUN_BY.items():
        name = page.rpartition("/")[2].removesuffix(".md").removeprefix("kubernetes-")
        path = checkout.ROOT / test
        if not path.exists() or name not in path.read_text(encoding="utf-8"):
            wrong.append((page, test))

    assert wrong == []


def test_the_examples_of_every_page_are_run_by_make_test() -> None:
    """A test file that runs the examples of a page has at least one test that `make test` runs."""
    tests = {test for test in RUN_BY.values() if test.rpartition("/")[2].startswith("test_")}

    assert [each for each in sorted(tests) if not run_by_default(each)] == []


def test_every_fence_names_its_language_and_is_closed() -> None:
    """Every fenced code block is closed and names its language, without which no test would run it."""
    wrong = []
    for path in checkout.files():
        if path.suffix != ".md" or path.parts[0] != "docs" or path.parts[1] in GENERATED:
            continue
        text = (checkout.ROOT / path).read_text(encoding="utf-8")
        fences = [line for line in text.splitlines() if line.lstrip().startswith("```")]
        if len(fences) != 2 * len(blocks(text)):
            wrong.append(str(path))

    assert wrong == []
