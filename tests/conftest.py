"""What every test shares: budgets by folder, a fixture for testing plugins, how hypothesis searches, bytecode."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("time_budget", "etcd_binaries", "pytester")

BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"
if sys.dont_write_bytecode:
    # Nothing is written beside the sources then, but kept all the same: to compile every test again is half of what it
    # takes to collect them. In this process alone: what makes images and wheels must not find the variable.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(BYTECODE)

# What a shell starts behind its back ignores Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no verdict on slow generation: the first text builds its character map for seconds, and machines
# are shared. Continuous integration repeats the same examples, so that a red run can be looked at again.
settings.register_profile(
    "fairlead",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.register_profile("prove", settings.get_profile("fairlead"), max_examples=5_000, derandomize=False)
settings.load_profile("fairlead")


def _given_seconds(item: pytest.Item) -> float:
    """Return the time that a test is given by its mark; 0 without one."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests with much time first, so that no worker waits for one at the end, and leave scenarios out.

    A scenario runs if its file is named, and in a run with `-m scenario`.
    """
    items.sort(key=_given_seconds, reverse=True)
    if "scenario" in config.option.markexpr:
        return
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args}
    left_out = [item for item in items if item.get_closest_marker("scenario") and item.path not in named]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
