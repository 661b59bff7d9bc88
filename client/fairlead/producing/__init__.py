"""Sending of records: batches per partition, sequences, the sender, delivery results."""
