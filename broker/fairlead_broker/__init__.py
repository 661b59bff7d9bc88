"""The Fairlead broker: a partitioned commit log served over HTTP/2."""
