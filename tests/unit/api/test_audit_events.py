"""Records of the audit log contain only the beginning of a long name."""

from __future__ import annotations

from fairlead_api.audit_events import NAME_LENGTH_MAX, cut


def test_long_names_are_cut() -> None:
    """A name of the maximum length is shown in full, and a longer name is truncated."""
    longest = "a" * NAME_LENGTH_MAX

    assert cut(longest) == cut(longest + "b") == longest
