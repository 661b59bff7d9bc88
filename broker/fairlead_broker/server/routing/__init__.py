"""Which broker carries out a call: lookup of leaders and coordinators, forwarding, calls from other brokers."""
