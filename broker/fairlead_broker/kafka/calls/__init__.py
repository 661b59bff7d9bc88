"""Calls of Kafka clients: one module for each family of APIs; the calls use the runtime and build responses."""
