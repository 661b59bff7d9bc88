"""What a broker answers to other brokers: fetches of followers, log ends, digests, positions, reported damage."""
