"""Plans for the security of a Cluster: certificates, TLS, the security mode, and Users with their access rules."""
