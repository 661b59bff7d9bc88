"""Every problem that Fairlead can answer, as data.

One table feeds the server's answers, the SDK's exceptions and the pages under `/problems/`. Codes are
permanent: a client may rely on code, status and kind. Read through `problems.CATALOGUE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fairlead_api.problems.cluster import CLUSTER_PROBLEMS
from fairlead_api.problems.definitions import ProblemDefinition
from fairlead_api.problems.requests import REQUEST_PROBLEMS
from fairlead_api.problems.state import STATE_PROBLEMS

CATALOGUE: Final[Mapping[str, ProblemDefinition]] = MappingProxyType(
    {definition.code: definition for definition in (*REQUEST_PROBLEMS, *STATE_PROBLEMS, *CLUSTER_PROBLEMS)}
)
"""Every problem by its code."""
