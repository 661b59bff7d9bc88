"""Start and stop of a broker: entry into the cluster, registration, leases, checks of the disk, departure."""
