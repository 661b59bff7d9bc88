"""Record batches: header, Arrow message, columns, and checks of untrusted bytes.

Used by broker and client. Within this package only the modules that handle columns import Arrow.
"""
