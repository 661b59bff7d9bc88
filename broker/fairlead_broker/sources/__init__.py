"""Calls to the source of a link over HTTP/2, as a client of its data listener (rules L2, L12).

`controlling` and `runtime.linking` use this package. The package defines the calls and their answers, and must not know
how an answer is used.
"""
