"""Start and stop of a broker: entry into the cluster, registration, leases, trust in the disk, departure."""
