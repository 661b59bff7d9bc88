"""Producing, fetching, tailing and deleting records over HTTP, and their forms: batches, JSON, lines, Arrow."""
