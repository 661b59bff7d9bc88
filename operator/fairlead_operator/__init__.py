"""The operator: reconciles Cluster and Topic resources with running brokers and topics."""
