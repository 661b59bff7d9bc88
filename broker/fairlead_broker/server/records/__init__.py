"""Produce, fetch, tail and delete calls over HTTP, and the forms of records: batches, JSON, lines, Arrow."""
