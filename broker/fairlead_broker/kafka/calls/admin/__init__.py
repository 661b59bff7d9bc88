"""Calls of administration: topics, configuration, partitions and the cluster, with the access rules of HTTP's calls."""
