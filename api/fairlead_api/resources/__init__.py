"""Custom resources of `fairlead.dev/v1alpha1`: specs and status of Cluster and Topic.

The custom resource definitions and their reference pages are generated from these Pydantic models, and the operator
reads stored objects with the models. Like the rest of the contract, the models perform no input or output. They must
not know how the operator reconciles a resource.
"""
