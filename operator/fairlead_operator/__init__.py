"""The operator: turns Cluster and Topic resources into brokers and topics, and keeps them so."""
