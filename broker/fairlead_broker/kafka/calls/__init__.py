"""Calls of Kafka's clients, one module for each family of APIs, which use the runtime and build responses."""
