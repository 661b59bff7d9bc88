"""Consumer groups on their coordinator: claims, turns, committed offsets, lag.

The decisions are those of the pure room `groups`. Called by `server` through the broker's parts.
"""
