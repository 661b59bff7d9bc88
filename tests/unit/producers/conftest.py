"""A state machine of a partition's producers, over an empty log."""

from __future__ import annotations

import pytest

from producers_kit import Shell


@pytest.fixture
def shell() -> Shell:
    """Return a state machine without producers, over an empty log."""
    return Shell()
