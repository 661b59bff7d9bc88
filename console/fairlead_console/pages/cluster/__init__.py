"""Pages about the cluster as a whole: its state, brokers, links, transactions and security."""
