"""Fixtures: a store on disk, a clock that tests advance, and a cluster of brokers on the store."""

from __future__ import annotations

from coordination_kit import clock, cluster, kit, life, path, store

__all__ = ["clock", "cluster", "kit", "life", "path", "store"]
