"""Kafka's protocol itself: the served APIs, their messages, byte frames, and error codes.

The package must not depend on topics or groups, and only the module `messages` imports the library with Kafka's message
definitions.
"""
