"""Record batches: header, Arrow message, columns, and checks of untrusted bytes.

Broker and client use these modules. Within this package only the modules that handle columns import Arrow.
"""
