"""The contract that every Fairlead program shares: ids, record batches, requests, problems, routes."""
