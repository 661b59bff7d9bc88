"""Administration over HTTP: topics, configuration, cluster, operations, groups, producers, documentation pages."""
