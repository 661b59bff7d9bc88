"""The route table is complete, consistent, and equal to the contract."""

from __future__ import annotations

import re

import msgspec
import pytest

from fairlead_api.access_needs import NameSource
from fairlead_api.problems import CATALOGUE
from fairlead_api.routes import ROUTES, Listener, Route, route

# Routes that are served, in the notation of the contract.
CALLS = {
    "GET /v1/whoami",
    "GET /v1/security",
    "GET /v1/tokens",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{token}",
    "GET /v1/acls",
    "POST /v1/acls",
    "DELETE /v1/acls/{acl}",
    "POST /v1/acls:check",
    "GET /v1/quotas",
    "PUT /v1/quotas/{subject}",
    "DELETE /v1/quotas/{subject}",
    "POST /v1/links",
    "GET /v1/links",
    "GET /v1/links/{link}",
    "PATCH /v1/links/{link}",
    "DELETE /v1/links/{link}",
    "POST /v1/links/{link}:pause",
    "POST /v1/links/{link}:resume",
    "POST /v1/links/{link}:acknowledge",
    "GET /v1/links/{link}/tails",
    "GET /v1/links/{link}/topics",
    "POST /v1/links/{link}:promote",
    "POST /v1/links/{link}:take-back",
    "POST /v1/links/{link}:adopt",
    "POST /v1/topics/{topic}:hand-over",
    "POST /v1/topics/{topic}:take-back",
    "GET /v1/versions",
    "GET /v1/cluster",
    "GET /v1/brokers",
    "GET /v1/metadata",
    "GET /v1/topics",
    "POST /v1/topics",
    "GET /v1/topics/{topic}",
    "PATCH /v1/topics/{topic}",
    "DELETE /v1/topics/{topic}",
    "GET /v1/cluster/config",
    "PATCH /v1/cluster/config",
    "GET /v1/brokers/{broker}/config",
    "PATCH /v1/brokers/{broker}/config",
    "POST /v1/topics/{topic}/records",
    "GET /v1/topics/{topic}/records",
    "POST /v1/topics/{topic}/partitions/{partition}/records",
    "POST /v1/produce",
    "POST /v1/producers",
    "POST /v1/transactions",
    "GET /v1/transactions",
    "POST /v1/transactions/{transaction}:commit",
    "POST /v1/transactions/{transaction}:abort",
    "POST /v1/transactions:commit",
    "GET /v1/transactions/{transaction}",
    "DELETE /v1/transactions/{transaction}",
    "GET /v1/topics/{topic}/partitions/{partition}/transactions",
    "GET /v1/topics/{topic}/partitions/{partition}/records",
    "POST /v1/fetch",
    "GET /v1/topics/{topic}/partitions/{partition}/offsets",
    "POST /v1/topics/{topic}/partitions/{partition}:accept-damage",
    "POST /v1/topics/{topic}/partitions/{partition}:delete-records",
    "POST /v1/offsets:lookup",
    "POST /v1/brokers/{broker}:cordon",
    "POST /v1/brokers/{broker}:uncordon",
    "POST /v1/brokers/{broker}:drain",
    "POST /v1/brokers/{broker}:undrain",
    "POST /v1/brokers/{broker}:request-restart",
    "DELETE /v1/brokers/{broker}",
    "POST /v1/topics/{topic}/partitions/{partition}:reassign",
    "POST /v1/topics/{topic}/partitions/{partition}:elect",
    "DELETE /v1/topics/{topic}/partitions/{partition}/reassignment",
    "GET /v1/reassignments",
    "GET /v1/replica-sizes",
    "GET /v1/broker-reports",
    "GET /v1/topics/{topic}/partitions/{partition}:digest",
    "GET /v1/topics/{topic}/partitions/{partition}",
    "GET /v1/topics/{topic}/partitions/{partition}/cleaning",
    "POST /v1/topics/{topic}/partitions/{partition}:clean",
    "GET /v1/topics/{topic}/partitions/{partition}/producers",
    "GET /v1/groups",
    "GET /v1/groups/{group}",
    "DELETE /v1/groups/{group}",
    "GET /v1/groups/{group}/lag",
    "PUT /v1/groups/{group}/members/{member}",
    "DELETE /v1/groups/{group}/members/{member}",
    "GET /v1/groups/{group}/offsets",
    "PUT /v1/groups/{group}/offsets",
    "DELETE /v1/groups/{group}/offsets",
    "POST /v1/groups/{group}/offsets:reset",
    "GET /problems/{code}",
    "GET /openapi.json",
    "GET /docs",
    "GET /docs/{asset}",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
}

# Calls whose parameters are all in the path.
WITHOUT_BODY = {
    "clean_partition",
    "cordon_broker", "uncordon_broker", "drain_broker", "undrain_broker", "request_restart",
    "pause_link", "resume_link", "acknowledge_link", "take_back_topic",
}  # fmt: skip
# Calls that read with a method other than GET; a group member's calls count as reading, as in Kafka's access rules.


def by_name(entry: Route) -> str:
    """Return the name of a route, which is used as the id of a test case."""
    return entry.name


def test_every_call_of_the_contract_stands_in_the_table_once() -> None:
    """Every call in the contract is in the table once, with a unique method and path and a unique name."""
    calls = [f"{entry.method} {entry.path}" for entry in ROUTES]

    assert sorted(calls) == sorted(CALLS)
    assert len({entry.name for entry in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("entry", ROUTES, ids=by_name)
def test_a_route_is_complete(entry: Route) -> None:
    """A route can be looked up by name, and its path parameters, problems, query and answers are consistent."""
    queries = [parameter.name for parameter in entry.query]
    in_path = re.findall(r"\{([a-z]+)\}", entry.path)

    assert route(entry.name) is entry
    assert sorted(entry.path_parameters) == sorted(in_path)
    assert set(entry.problems) <= set(CATALOGUE)
    assert len(queries) == len(set(queries))
    assert entry.summary
    assert not entry.summary.endswith(".")
    assert all(parameter.explanation for parameter in entry.query)
    assert {excluded for parameter in entry.query for excluded in parameter.excludes} <= set(queries)
    assert bool(entry.body_types) == (
        entry.method in ("POST", "PUT", "PATCH") and entry.name not in WITHOUT_BODY
    )
    assert all(200 <= form.status < 600 for form in entry.answers)
    assert len({form.status for form in entry.answers}) == len(entry.answers)
    assert all(form.explanation for form in entry.answers)


NEEDS = {
    "public": "versions problem_page openapi docs docs_asset healthz readyz metrics",
    "self": "whoami",
    "self, describe topic (each in the answer)": (
        "metadata list_topics list_reassignments list_replica_sizes"
    ),
    "self, describe group (each in the answer)": "list_groups",
    "self, create topic (each in the request)": "create_topic",
    "self, write topic (each in the request), write producer (each in the request)": "produce",
    "self, read topic (each in the request)": "fetch",
    "self, describe topic (each in the request)": "lookup_offsets",
    "self, write producer (each in the request)": "allocate_producer begin_transaction abort_transaction",
    (
        "self, write producer (each in the request), write topic (each in the request),"
        " read group (each in the request), read topic (each in the request)"
    ): "commit_transaction commit_transactions",
    "self, delete producer (each in the request)": "delete_transaction",
    "self, describe producer (each in the answer), describe topic (each in the answer)": (
        "list_transactions describe_transaction"
    ),
    "self, describe security (each in the request)": "check_acls",
    "describe cluster": "describe_cluster list_brokers list_broker_reports describe_cluster_config "
    "describe_broker_config list_links "
    "describe_link link_topics link_tails",
    "alter cluster": "alter_broker_config cordon_broker uncordon_broker drain_broker undrain_broker request_restart "
    "delete_link pause_link resume_link acknowledge_link promote_link take_back_link adopt_link",
    "alter cluster, alter security (each in the request)": "alter_cluster_config",
    "alter cluster, create security (each in the request)": "create_link alter_link",
    "delete cluster": "unregister_broker",
    "alter cluster, describe topic": "reassign_partition cancel_reassignment",
    "alter cluster, describe topic, delete topic (each in the request)": "elect_leader",
    "alter cluster, delete topic": "accept_damage",
    "describe topic": "describe_topic describe_partition partition_offsets partition_transactions partition_cleaning",
    "alter topic": "alter_topic clean_partition hand_over_topic take_back_topic",
    "delete topic": "delete_topic delete_records",
    "read topic": "digest_partition fetch_partition tail_topic partition_producers",
    "write topic, create topic (each in the request)": "produce_topic produce_partition",
    "describe group, describe topic (each in the answer)": "describe_group group_lag committed_offsets",
    "delete group": "delete_group delete_offsets",
    "read group": "leave_group",
    "read group, read topic (each in the request)": "heartbeat commit_offsets reset_offsets",
    "describe security": "security_status list_tokens list_acls list_quotas",
    "create security": "create_token create_acl",
    "alter security": "put_quota",
    "delete security": "revoke_token remove_acl remove_quota",
}
"""Access requirements of every route, from the table in section 3.3 of the security contract."""


def test_every_route_has_the_needs_of_the_contract() -> None:
    """Every route has exactly the security contract's access requirements, and a missing row fails the test (Z15)."""
    expected = {name: access for access, names in NEEDS.items() for name in names.split()}

    assert {entry.name: str(entry.access) for entry in ROUTES} == expected


@pytest.mark.parametrize("entry", ROUTES, ids=by_name)
def test_a_need_names_a_parameter_of_the_path(entry: Route) -> None:
    """An access requirement on a name refers to a path parameter, and each topic or group parameter has one."""
    of_path = {need.kind.value for need in entry.access.needs if need.source is NameSource.PATH}

    assert of_path == {kind for kind in ("topic", "group", "producer") if f"{{{kind}}}" in entry.path}
    assert (entry.listener is Listener.OPS) == (entry.name in ("healthz", "readyz", "metrics"))


def test_an_unknown_name_finds_no_route() -> None:
    """Looking up an unknown route name raises an error."""
    with pytest.raises(KeyError):
        route("teleport")


def test_the_usual_answer_is_the_first() -> None:
    """The first representation of an answer determines `answer` and `answer_types`, the default media type first."""
    entry = route("fetch_partition")

    assert entry.answer is entry.answers[0].type
    assert entry.answer_types[0] == "application/json"


def test_changes_are_audited_and_records_are_not() -> None:
    """Answers to calls that change something are audited, but reads and calls with records are not (rule U4)."""
    audited = {entry.name for entry in ROUTES if entry.is_audited}

    assert {"create_topic", "create_acl", "put_quota", "drain_broker", "reset_offsets"} <= audited
    assert audited.isdisjoint({"produce", "fetch", "heartbeat", "list_topics", "lookup_offsets", "whoami"})


@pytest.mark.parametrize("entry", ROUTES, ids=by_name)
def test_a_call_that_takes_a_leader_epoch_can_refuse_it(entry: Route) -> None:
    """A call with the header `Fairlead-Leader-Epoch` lists the problems for a stale and for an unknown epoch."""
    takes = any(header.name == "Fairlead-Leader-Epoch" for header in entry.headers)

    assert not takes or {"stale_leader_epoch", "unknown_leader_epoch"} <= set(entry.problems)


@pytest.mark.parametrize("entry", [entry for entry in ROUTES if entry.name.startswith("list_")], ids=by_name)
def test_every_list_has_pages(entry: Route) -> None:
    """A list has the parameters `limit` and `after`, and its answer has `items` and `next`."""
    described = msgspec.json.encode(msgspec.json.schema(entry.answer)).decode()

    assert {"limit", "after"} <= {parameter.name for parameter in entry.query}
    assert '"items":{' in described
    assert '"next":{' in described
