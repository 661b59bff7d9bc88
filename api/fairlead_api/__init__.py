"""Contract shared by all Fairlead programs: ids, record batches, requests, problems, routes."""
