"""Pages about records: searches, one record, live tails, exports, and forms that write records."""
