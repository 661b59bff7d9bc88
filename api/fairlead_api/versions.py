"""Versions that this release supports: API versions, batch formats, codecs, feature level.

`GET /v1/versions` returns the versions, and requests that name a version are checked against them. This module must not
contain the release number of the software, which is read from the installed distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable

API_VERSIONS: Final = ("v1",)
BATCH_FORMATS: Final = (1,)
CODECS: Final = ("none", "lz4", "zstd")
SECURITY_LEVEL: Final = 2
"""First feature level with ACLs, API tokens and the modes above `open`."""
QUORUM_LEVEL: Final = 3
"""First feature level with partitions that have a write quorum."""
FEATURE_LEVEL: Final = 3
"""Feature level of this release; newer fields are written only when every broker of the cluster supports their
level."""


def check_batch_formats(formats: Iterable[int]) -> None:
    """Raise `unsupported_version` unless the client reads a batch format that this release writes."""
    named = list(formats)
    if not any(number in BATCH_FORMATS for number in named):
        raise ProblemError(
            "unsupported_version",
            f"the client reads batch formats {named}, but this broker writes {list(BATCH_FORMATS)}",
            data={"parameter": "formats", "value": named, "supported": BATCH_FORMATS},
        )
