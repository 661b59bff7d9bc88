"""Sending records: batches by partition, sequences, the sender, delivery results."""
