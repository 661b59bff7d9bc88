"""Grafana's boards as data: what is asked of Prometheus, and how Grafana is to show it.

Each board is a module with a `BOARD`; `catalogue` lists them, `drawing` makes Grafana's JSON of one. Called by
`docs/generate/dashboards.py`. The rules that every board keeps are tests (`tests/observability/test_boards.py`).
"""
