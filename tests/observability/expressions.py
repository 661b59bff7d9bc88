"""What an expression in PromQL names: its metrics, and what stands around its counters.

Not a parser: expressions of ours keep to the forms that are taken apart here, and `test_boards.py` says so where one
does not.
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
    """Return the patterns by which an expression chooses metrics."""
    return set(_NAMED_BY_PATTERN.findall(expression))


def bare_counters(expression: str) -> set[str]:
    """Return the counters that stand outside of rate, increase and changes."""
    text = _SELECTORS.sub("", _STRINGS.sub('""', expression))
    covered = re.sub(r"\b(?:rate|increase|irate)\(\w+\[[^\]]*\]\)", "", text)
    return {name for name in metrics_of(covered) if _COUNTER.search(name) and ":" not in name}


def gauges_under_rate(expression: str) -> set[str]:
    """Return what stands under rate or increase and is no counter."""
    text = _SELECTORS.sub("", _STRINGS.sub('""', expression))
    return {
        name for name in re.findall(r"\b(?:rate|increase|irate)\((\w+)\[", text) if not _COUNTER.search(name)
    }
