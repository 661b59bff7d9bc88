"""Page of all metrics."""

from __future__ import annotations

from page_text import GENERATED, code, codes, table

from fairlead_api.metrics import METRICS, PROCESS_METRICS

TEXT = """# Metrics

What a broker exposes at `/metrics` of its ops listener, in Prometheus' text format.

"""


PROCESS_TEXT = """
## Of the process

Every program with Prometheus' library tells these of itself, on Linux, under the same names.

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    rows = [
        [
            code(metric.name),
            metric.kind,
            codes(metric.labels),
            metric.help,
            ", ".join(map(str, metric.buckets)),
        ]
        for metric in METRICS
    ]
    of_process = [[code(metric.name), metric.kind, metric.help] for metric in PROCESS_METRICS]
    return {
        "metrics.md": GENERATED
        + TEXT
        + table(["name", "kind", "labels", "meaning", "upper bounds"], rows)
        + PROCESS_TEXT
        + table(["name", "kind", "meaning"], of_process)
    }
