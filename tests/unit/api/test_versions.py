"""Versions and formats that this release supports."""

from __future__ import annotations

import pytest

from fairlead_api.problems import ProblemError
from fairlead_api.versions import BATCH_FORMATS, check_batch_formats


@pytest.mark.parametrize("formats", [[1], [2, 1], (1, 7)])
def test_a_client_that_reads_our_format_may_read_others_too(formats: list[int]) -> None:
    """A client is accepted if it supports at least one format of the broker."""
    check_batch_formats(formats)

    assert BATCH_FORMATS == (1,)


@pytest.mark.parametrize("formats", [[], [2], [0, -1]])
def test_a_client_of_other_formats_learns_which_we_write(formats: list[int]) -> None:
    """A client without a common format is refused, and the problem lists the supported formats."""
    with pytest.raises(ProblemError) as refused:
        check_batch_formats(formats)

    assert refused.value.code == "unsupported_version"
    assert refused.value.data["supported"] == (1,)
