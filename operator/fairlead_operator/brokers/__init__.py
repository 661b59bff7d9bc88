"""Calls to the brokers of a Cluster, each with a deadline; a cluster that does not answer is one typed error."""
