"""Rendering of the desired Kubernetes objects as dicts, without I/O, from a Cluster and the decisions of its plan."""

from fairlead_operator.render.addresses import (
    advertised_addresses,
    at_nodes,
    bootstrap_address,
    broker_addresses,
    broker_ids,
    external_addresses,
    external_bootstrap,
)
from fairlead_operator.render.cluster import render_cluster
from fairlead_operator.render.configuration import SET_ELSEWHERE, ConfigSplit, forbidden_text, split_config
from fairlead_operator.render.fingerprints import pod_spec_hash, restart_config_hash
from fairlead_operator.render.inputs import NO_MEMBER_JOINS, EtcdInputs, Images, RenderInputs
from fairlead_operator.render.pods import TemplateRefused

__all__ = [
    "NO_MEMBER_JOINS",
    "SET_ELSEWHERE",
    "ConfigSplit",
    "EtcdInputs",
    "Images",
    "RenderInputs",
    "TemplateRefused",
    "advertised_addresses",
    "at_nodes",
    "bootstrap_address",
    "broker_addresses",
    "broker_ids",
    "external_addresses",
    "external_bootstrap",
    "forbidden_text",
    "pod_spec_hash",
    "render_cluster",
    "restart_config_hash",
    "split_config",
]
