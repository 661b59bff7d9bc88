"""Grafana boards as data: the queries to Prometheus, and how Grafana shows their results.

Each board is a module that defines `BOARD`. `catalogue` lists all boards, and `drawing` converts a board to Grafana's
JSON. Called by `docs/generate/dashboards.py`. Tests check the rules that apply to every board
(`tests/observability/test_boards.py`).
"""
