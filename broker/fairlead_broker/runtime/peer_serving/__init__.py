"""Answers to calls of other brokers: fetches of followers, log ends, digests, positions, reported damage."""
