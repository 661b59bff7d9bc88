"""Compaction: which part of a log is cleaned, which records stay, and the batches that replace the stored batches.

A round of cleaning (`log/cleaning/rounds.py`) consists of these functions, and the runtime uses them to decide when a
round is due and which tombstones may be removed. The package must not know about files, loops, HTTP or clocks. Records
are handled in windows of whole columns, never one by one.
"""
