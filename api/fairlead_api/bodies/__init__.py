"""Bodies of requests and answers: JSON documents, frames of batches, CloudEvents, media types.

Used by broker and client. These modules must not depend on routes or on how a call is carried out.
"""
