"""Page of all metrics."""

from __future__ import annotations

from page_text import GENERATED, code, codes, table

from fairlead_api.metrics import METRICS, PROCESS_METRICS

TEXT = """# Metrics

Metrics that a broker exposes at `/metrics` on its ops listener, in the text format of Prometheus.

"""


PROCESS_TEXT = """
## Metrics of the process

On Linux, every program with Prometheus' client library exposes these metrics of its process under the same names.

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
