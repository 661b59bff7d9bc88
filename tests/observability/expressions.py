"""Functions that find the metrics of a PromQL expression, and the functions around its counters.

The module is not a parser: the expressions of this project have few forms, and `test_boards.py` fails for other forms.
"""

from __future__ import annotations

import re
from typing import Final

_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAMED_BY_PATTERN: Final = re.compile(r'\{__name__=~"([^"]+)"')
_GROUPINGS: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTORS: Final = re.compile(r"\{[^}]*\}")
_RANGES: Final = re.compile(r"\[[^\]]*\]")
_METRIC: Final = re.compile(r"\b(?:(?:fairlead|process|metrics|spark|etcd)_\w+|up\b|\w+:fairlead_\w+:\w+)")
_COUNTER: Final = re.compile(r"_(?:total|bucket|count|sum)$")


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    text = _STRINGS.sub('""', expression)
    for noise in (_GROUPINGS, _SELECTORS, _RANGES):
        text = noise.sub("", text)
    return set(_METRIC.findall(text))


def patterns_of(expression: str) -> set[str]:
    """Return the patterns by which an expression selects metrics."""
    return set(_NAMED_BY_PATTERN.findall(expression))


def bare_counters(expression: str) -> set[str]:
    """Return the counters outside of rate, increase and changes."""
    text = _SELECTORS.sub("", _STRINGS.sub('""', expression))
    covered = re.sub(r"\b(?:rate|increase|irate)\(\w+\[[^\]]*\]\)", "", text)
    return {name for name in metrics_of(covered) if _COUNTER.search(name) and ":" not in name}


def gauges_under_rate(expression: str) -> set[str]:
    """Return the metrics inside rate or increase that are not counters."""
    text = _SELECTORS.sub("", _STRINGS.sub('""', expression))
    return {
        name for name in re.findall(r"\b(?:rate|increase|irate)\((\w+)\[", text) if not _COUNTER.search(name)
    }
