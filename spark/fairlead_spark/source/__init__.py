"""The source of `format("fairlead")`: reads topics into Spark as Arrow batches."""
