"""Routing of calls to brokers: lookup of leaders and coordinators, forwarding, calls from other brokers."""
