"""Calls to the brokers of a Cluster, each with a deadline; a call that no broker answers raises a typed error."""
