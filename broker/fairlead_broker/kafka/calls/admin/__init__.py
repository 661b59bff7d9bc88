"""Administration calls: topics, configuration, partitions, cluster; their access rules are those of the HTTP calls."""
