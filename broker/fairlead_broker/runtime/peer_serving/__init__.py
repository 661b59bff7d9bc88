"""The answers of a broker to other brokers: fetches of followers, log ends, digests, positions, reported damage."""
