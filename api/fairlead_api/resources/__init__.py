"""The custom resources of `fairlead.dev/v1alpha1`: what a Cluster and a Topic may say, and what their status tells.

Pydantic models from which the custom resource definitions and their reference pages are made, and as which the
operator reads stored objects. Pure, like the rest of the contract. Must not know how a resource becomes true.
"""
