"""Bodies of requests and answers: JSON documents, frames of batches, CloudEvents, media types.

The broker and the client use these modules. These modules must not depend on routes or on how a call is carried out.
"""
