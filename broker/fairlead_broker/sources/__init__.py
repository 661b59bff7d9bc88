"""Calls to the source of a link over HTTP/2, as a client of its data listener (rules L2, L12).

`controlling` and `runtime.linking` use this package. It knows what is called and what is answered, and must not know
what is done with an answer.
"""
