"""Answers to calls from other brokers: fetches from followers, log ends, digests, positions, reported damage."""
