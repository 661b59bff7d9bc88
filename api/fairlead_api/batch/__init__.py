"""The record batch: its header, its Arrow message, its columns, and the checks of hostile bytes.

Read by broker and client. Only these modules load Arrow, and only those of them that hold columns.
"""
