"""Fixtures of a store on disk, a clock that the test moves, and a cluster of brokers on that store."""

from __future__ import annotations

from coordination_kit import clock, cluster, kit, life, path, store

__all__ = ["clock", "cluster", "kit", "life", "path", "store"]
