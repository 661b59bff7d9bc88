"""Custom resources of `fairlead.dev/v1alpha1`: specs and status of all kinds.

The custom resource definitions and their reference pages are generated from these Pydantic models, and the operator
reads stored objects with the models. Like the other modules of `fairlead_api`, the models perform no I/O. The models
must not depend on how the operator reconciles a resource.
"""
