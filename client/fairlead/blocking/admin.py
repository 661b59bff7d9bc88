"""The blocking admin client; see `fairlead.Admin`."""

from __future__ import annotations

from typing import Any

from fairlead.admin import Admin as AsyncAdmin
from fairlead.blocking.facade import Facade, blocking, same_arguments


class Admin(Facade[AsyncAdmin]):
    """Blocking variant of `fairlead.Admin`, opened with `with`."""

    @same_arguments(AsyncAdmin.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncAdmin(*args, **kwargs))

    create_topic = blocking(AsyncAdmin.create_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    cluster = blocking(AsyncAdmin.cluster)
    brokers = blocking(AsyncAdmin.brokers)
    versions = blocking(AsyncAdmin.versions)
    metadata = blocking(AsyncAdmin.metadata)
    offsets = blocking(AsyncAdmin.offsets)
    delete_records = blocking(AsyncAdmin.delete_records)
    accept_damage = blocking(AsyncAdmin.accept_damage)
    whoami = blocking(AsyncAdmin.whoami)
    security_status = blocking(AsyncAdmin.security_status)
    tokens = blocking(AsyncAdmin.tokens)
    create_token = blocking(AsyncAdmin.create_token)
    revoke_token = blocking(AsyncAdmin.revoke_token)
    acls = blocking(AsyncAdmin.acls)
    create_acl = blocking(AsyncAdmin.create_acl)
    remove_acl = blocking(AsyncAdmin.remove_acl)
    quotas = blocking(AsyncAdmin.quotas)
    put_quota = blocking(AsyncAdmin.put_quota)
    remove_quota = blocking(AsyncAdmin.remove_quota)
    check_access = blocking(AsyncAdmin.check_access)
    cluster_config = blocking(AsyncAdmin.cluster_config)
    alter_cluster_config = blocking(AsyncAdmin.alter_cluster_config)
    broker_config = blocking(AsyncAdmin.broker_config)
    alter_broker_config = blocking(AsyncAdmin.alter_broker_config)
    cordon_broker = blocking(AsyncAdmin.cordon_broker)
    uncordon_broker = blocking(AsyncAdmin.uncordon_broker)
    drain_broker = blocking(AsyncAdmin.drain_broker)
    undrain_broker = blocking(AsyncAdmin.undrain_broker)
    request_restart = blocking(AsyncAdmin.request_restart)
    unregister_broker = blocking(AsyncAdmin.unregister_broker)
    describe_partition = blocking(AsyncAdmin.describe_partition)
    reassign = blocking(AsyncAdmin.reassign)
    cancel_reassignment = blocking(AsyncAdmin.cancel_reassignment)
    elect = blocking(AsyncAdmin.elect)
    compare_replicas = blocking(AsyncAdmin.compare_replicas)
    compare_newest = blocking(AsyncAdmin.compare_newest)
    describe_cleaning = blocking(AsyncAdmin.describe_cleaning)
    clean_partition = blocking(AsyncAdmin.clean_partition)
    reassignments = blocking(AsyncAdmin.reassignments)
    offsets_for = blocking(AsyncAdmin.offsets_for)
    list_groups = blocking(AsyncAdmin.list_groups)
    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    forget_transactions = blocking(AsyncAdmin.forget_transactions)
    partition_transactions = blocking(AsyncAdmin.partition_transactions)
    describe_group = blocking(AsyncAdmin.describe_group)
    group_lag = blocking(AsyncAdmin.group_lag)
    group_offsets = blocking(AsyncAdmin.group_offsets)
    commit_group_offsets = blocking(AsyncAdmin.commit_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)
    reset_group_offsets = blocking(AsyncAdmin.reset_group_offsets)
    delete_group = blocking(AsyncAdmin.delete_group)
