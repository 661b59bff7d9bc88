"""All rendered objects of a Cluster, in the order in which they are applied."""

from __future__ import annotations

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import SERVICE_ACCOUNT, Manifest, service_account_name
from fairlead_operator.render.brokers import broker_set, config_map
from fairlead_operator.render.console import console_objects
from fairlead_operator.render.etcd import etcd_objects
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.metadata import framed
from fairlead_operator.render.policies import disruption_budgets, network_policies, pod_monitors
from fairlead_operator.render.routes import routes
from fairlead_operator.render.security import authorities_map, client_certificates, metrics_users
from fairlead_operator.render.services import broker_services


def _security(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    if inputs.transport is None:
        return []
    return [
        authorities_map(cluster, inputs.transport),
        *client_certificates(cluster, inputs.transport.names),
        *metrics_users(cluster),
    ]


def _console(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    console = cluster.spec.console
    return [] if console is None else console_objects(cluster, console, inputs)


def render_cluster(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return all desired objects in a fixed order; every object precedes the objects that depend on it.

    The caller deletes every object of the Cluster that is not in the list. Raises `TemplateRefused` if a pod template
    has a field that cannot be merged over a pod.
    """
    account = framed(cluster, SERVICE_ACCOUNT, service_account_name(cluster.name))
    return [
        {**account, "automountServiceAccountToken": False},
        config_map(cluster, inputs),
        *_security(cluster, inputs),
        *network_policies(cluster, inputs),
        *disruption_budgets(cluster, inputs),
        *broker_services(cluster, inputs),
        *etcd_objects(cluster, inputs),
        *(broker_set(cluster, pool, inputs) for pool in cluster.spec.brokers),
        *_console(cluster, inputs),
        *routes(cluster, inputs),
        *pod_monitors(cluster, inputs),
    ]
