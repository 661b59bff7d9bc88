"""A plugin that builds etcd before the first test that needs it, so that no timed test waits for a compiler.

tests/conftest.py loads the plugin, which builds with `etcd_build`.
"""

from __future__ import annotations

import pytest

from etcd_build import EtcdNotBuilt, etcd_binaries


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build etcd if a test with the marker `etcd` is selected."""
    if session.config.option.collectonly or not any(
        item.get_closest_marker("etcd") for item in session.items
    ):
        return
    try:
        etcd_binaries()
    except EtcdNotBuilt as error:
        reason = f"{error}\ntests marked etcd need it; leave them out with -m 'not etcd'"
        pytest.exit(reason, returncode=pytest.ExitCode.USAGE_ERROR)
