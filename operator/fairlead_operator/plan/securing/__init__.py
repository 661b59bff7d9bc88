"""Security of a Cluster: certificates, TLS and modes by what brokers report, and Users with their access rules."""
