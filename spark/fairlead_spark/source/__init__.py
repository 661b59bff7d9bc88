"""Reads topics into Spark, as batches of Arrow columns: what `format("fairlead")` is made of on the reading side."""
