"""Copying of mirrors that this broker leads: fetches from the sources of links, and changes to logs and records.

The decisions are made by `links`. This package must not know how mirrors are created or promoted.
"""
