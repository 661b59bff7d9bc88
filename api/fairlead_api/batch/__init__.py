"""Record batches: header, Arrow message, columns, and checks of untrusted bytes.

The broker and the client use these modules. Within this package only the modules that handle columns import Arrow.
"""
