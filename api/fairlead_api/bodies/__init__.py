"""Bodies of requests and answers: JSON documents, frames of batches, CloudEvents, media types.

Read by broker and client. Bodies know neither routes nor how a call is carried out.
"""
