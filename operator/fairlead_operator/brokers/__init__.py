"""Calls to the brokers of a Cluster, each with a deadline; a cluster that does not answer raises one typed error."""
