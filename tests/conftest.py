"""Settings for all tests: time limits by folder, Hypothesis profiles and bytecode."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

pytest_plugins = ("time_budget", "etcd_binaries", "shown_tokens")

FOLDER = Path(__file__).parent
LONG_FILES = {
    FOLDER / name
    for name in (
        "conformance/coordination/test_leases.py",
        "etcd/client/test_failover.py",
        "faults/test_damaged_files.py",
        "faults/test_disk_faults.py",
        "integration/cli/test_clusters_how_to.py",
        "integration/cli/test_commands.py",
        "integration/cli/test_operations_how_to.py",
        "integration/cli/test_terminal.py",
        "integration/client/groups/test_group_commits.py",
        "integration/client/groups/test_groups.py",
        "integration/client/test_consuming.py",
        "integration/client/test_idempotence.py",
        "integration/client/test_large_batches.py",
        "integration/client/test_producing.py",
        "integration/cluster/test_restored_store.py",
        "integration/http/records/test_lines.py",
        "integration/http/records/test_tail.py",
        "integration/idempotence/test_producers.py",
        "observability/test_live_boards.py",
        "observability/test_observability_how_to.py",
        "overload/test_connections.py",
        "overload/test_memory.py",
        "recipes/test_recipes.py",
        "release/test_installed_broker.py",
        "security/tls/test_certificate_reload.py",
        "unit/log/test_restarted_logs.py",
        "unit/runtime/hosting/test_replicas.py",
        "unit/runtime/leading/test_producer_order.py",
    )
}
"""Test files that each take more than ten seconds on an idle machine, or twenty while other workers run tests."""
ONE_AUTHORITY = {
    "SSL_CERT_FILE": str(FOLDER / "plugins/no_authority.pem"),
    "SSL_CERT_DIR": str(FOLDER / "plugins/no_authorities"),
}
CALLERS_PREFIX = "CALLERS_"
"""Prefix of the variables that contain the authorities named by the caller of the tests."""
SCHEMATHESIS = "schemathesis.pytest.plugin"
BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"
if sys.dont_write_bytecode:
    # If PYTHONDONTWRITEBYTECODE is set, bytecode is kept in a separate folder instead of next to the sources, because
    # compiling every test again takes half of the collection time. The folder of bytecode is set in this process only,
    # and not by PYTHONPYCACHEPREFIX, which programs that build images and wheels would inherit.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(BYTECODE)

# A shell starts background jobs with SIGINT ignored. Programs that a test starts and interrupts would inherit the
# ignored SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis runs without a deadline and without its check for slow generation, because its first text takes seconds to
# build the character map, and because machines are shared. Continuous integration runs the same examples each time, so
# that a failed run can be reproduced.
settings.register_profile(
    "fairlead",
    # `make prove PROVE=searches` tries 5,000 examples of each property.
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.register_profile("prove", settings.get_profile("fairlead"), max_examples=5_000, derandomize=False)
settings.load_profile("fairlead")

# libyaml parses ten times faster than PyYAML's own parser, and charts and resource definitions are parsed often.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment, misc]

# The garbage collector runs rarely, because a full pass over the thousands of collected tests costs a tenth of a run.
gc.set_threshold(50_000, 20, 100)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Load the plugin of Schemathesis before the only tests that need it are collected, since its import is slow."""
    plugins = parent.config.pluginmanager
    if file_path.parent.name == "openapi" and not plugins.has_plugin(SCHEMATHESIS):
        plugins.import_plugin(SCHEMATHESIS)


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, since they live until the end of the run."""
    gc.collect()
    gc.freeze()


def pytest_runtestloop() -> None:
    """Limit this process and its children to a single certificate authority, and keep the authorities of the caller.

    Every HTTP client loads the authorities of the system, which takes ten milliseconds, and the tests create thousands
    of clients. Programs that download something are built earlier, or run with the caller's variables (`install_kit`).
    """
    for name, one in ONE_AUTHORITY.items():
        named = os.environ.get(name, one)
        if named != one:
            os.environ[CALLERS_PREFIX + name] = named
        os.environ[name] = one


def _length(item: pytest.Item) -> tuple[float, bool]:
    """Return the time limit from a test's mark (0 without a mark), and whether the file of the test is slow."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0, item.path in LONG_FILES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order slow tests first, so that no worker waits for them at the end, and deselect scenarios.

    A scenario runs if its file is named, or in a run with `-m scenario`.
    """
    items.sort(key=_length, reverse=True)
    if "scenario" in config.option.markexpr:
        return
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args}
    left_out = [item for item in items if item.get_closest_marker("scenario") and item.path not in named]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
