"""Calls of transactions over HTTP: bodies of lines, repeated requests, bad input, and clusters at a lower level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_kit import BATCHES, JSON, TIME_US, Answer, Calls
from cluster_kit import Cluster
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.bodies.media_types import FRAMES
from fairlead_broker.coordination import bootstrap
from fairlead_broker.runtime.lifecycle import cluster_entry

if TYPE_CHECKING:
    import pytest

BEGIN = "/v1/transactions"
JOINT = f"{BEGIN}:commit"
RECORDS = "/v1/topics/orders/records"
PARTITION = "/v1/topics/orders/partitions/0"
FRAMED = {"content-type": FRAMES}
COMMIT = "fairlead-commit-transaction"
LINES = {"content-type": "application/x-ndjson"}
ROW = {"records": [{"value": "lost"}]}
OFFSETS = {"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]}


async def begin(api: Calls, **fields: Any) -> str:
    """Begin a transaction and return its id."""
    return str((await api.post(BEGIN, fields)).json["transaction"])


async def committed(api: Calls, count: int) -> list[str]:
    """Return the values that a reader of committed records gets, once it has enough of them."""
    path = f"{PARTITION}/records?isolation=read_committed&max_wait_ms=0&offset=0"
    async with asyncio.timeout(20):
        while True:
            answer = await api.call("GET", path, None, {"accept": "application/json"})
            values = [record["value"] for record in answer.json["records"]] if answer.status == 200 else []
            if len(values) >= count:
                return values
            await asyncio.sleep(0.02)  # noqa: TID251 - no event announces that a marker is committed


async def test_lines_belong_to_the_transaction(api: Calls) -> None:
    """The records of an NDJSON body are in the transaction that its header names, for a topic and for a partition."""
    transaction = await begin(api)
    headers = {**LINES, "fairlead-transaction": transaction}
    for path, body in (
        (RECORDS, b'{"value":"a"}\n{"value":"b"}\n'),
        (f"{PARTITION}/records", b'{"value":"c"}\n'),
    ):
        answer = await api.call("POST", path, body, headers)
        assert answer.body.splitlines()[-1].startswith(b'{"status":200'), answer
    hidden = await committed(api, 0)
    await api.post(f"{BEGIN}/{transaction}:commit", {})

    assert hidden == []
    assert await committed(api, 3) == ["a", "b", "c"]


async def test_a_repeat_with_a_sequence_is_recognised(api: Calls) -> None:
    """A request with a sequence can be repeated in its transaction, and its records are stored once."""
    transaction = await begin(api)
    headers = {"Fairlead_Transaction": transaction, "Fairlead_Base_Sequence": "0"}
    first, repeat = [await api.post(f"{PARTITION}/records", ROW, **headers) for _ in range(2)]
    gap = await api.post(f"{PARTITION}/records", ROW, **{**headers, "Fairlead_Base_Sequence": "7"})
    await api.post(f"{BEGIN}/{transaction}:commit", {})

    assert (first.json["duplicate"], repeat.json["duplicate"]) == (False, True)
    assert first.json["base_offset"] == repeat.json["base_offset"]
    assert gap.code == "out_of_order_sequence"
    assert await committed(api, 1) == ["lost"]


def joint(*transactions: str) -> dict[str, Any]:
    """Return the body of a joint commit."""
    return {"transactions": [{"transaction": each} for each in transactions]}


def bad_bodies(known: str, ended: str) -> list[tuple[str, str, object, dict[str, str], str]]:
    """Return bad calls: method, path, body, headers, and the code of the refusal. `known` is open, `ended` is not."""
    commit = f"{BEGIN}/{known}:commit"
    recreated = {"topic": "orders", "topic_id": "00000000-0000-4000-8000-000000000000", "partitions": [0]}
    far = [{"topic": "orders", "partition": 0, "offset": 9}]
    member = {"group": "g", "member_id": "m", "member_epoch": 1, **OFFSETS}
    binary = {"content-type": BATCHES, "fairlead-transaction": known}
    return [
        ("POST", BEGIN, {"timeout_ms": 999}, {}, "invalid_transaction"),
        ("POST", BEGIN, {"timeout_ms": 900_001}, {}, "invalid_transaction"),
        ("POST", BEGIN, {"name": ""}, {}, "invalid_transaction"),
        ("POST", BEGIN, {"name": "plain"}, {}, "conflict"),
        ("POST", BEGIN, {"timeout": 5000}, {}, "unknown_option"),
        ("POST", BEGIN, {"above": -1}, {}, "malformed_request"),
        ("POST", BEGIN, b"{", {}, "malformed_request"),
        ("POST", "/v1/producers", {"name": "billing"}, {}, "conflict"),
        ("POST", f"{BEGIN}/017.4:commit", {}, {}, "malformed_request"),
        ("POST", f"{BEGIN}/17.99999999999:commit", {}, {}, "malformed_request"),
        ("POST", f"{BEGIN}/999.0:commit", {}, {}, "transaction_not_found"),
        ("POST", f"{BEGIN}/999.0:abort", None, {}, "transaction_not_found"),
        ("POST", f"{BEGIN}/nothing:abort", None, {}, "transaction_not_found"),
        ("POST", f"{BEGIN}/{ended}:commit", {}, {}, "transaction_aborted"),
        ("POST", commit, {"partitions": [{"topic": "nothing", "partitions": [0]}]}, {}, "topic_not_found"),
        ("POST", commit, {"partitions": [{"topic": "orders", "partitions": [9]}]}, {}, "partition_not_found"),
        ("POST", commit, {"partitions": [recreated]}, {}, "topic_recreated"),
        ("POST", commit, {"partitions": [{"partitions": [0]}]}, {}, "malformed_request"),
        ("POST", commit, {"partitions": [{"topic": "orders", "partitions": []}]}, {}, "malformed_request"),
        ("POST", commit, {"metadata": "é" * 129}, {}, "malformed_request"),
        ("POST", commit, {"offsets": {"group": "", **OFFSETS}}, {}, "invalid_group_name"),
        ("POST", commit, {"offsets": member}, {}, "member_not_found"),
        ("POST", commit, {"offsets": {"group": "g", "offsets": far}}, {}, "offset_out_of_range"),
        ("POST", JOINT, {"transactions": []}, {}, "malformed_request"),
        ("POST", JOINT, joint(*(f"{number}.0" for number in range(101))), {}, "malformed_request"),
        ("POST", JOINT, joint(known, known), {}, "malformed_request"),
        ("POST", JOINT, joint("17"), {}, "malformed_request"),
        ("POST", JOINT, joint(known, "999.0"), {}, "transaction_not_found"),
        ("POST", JOINT, joint(known, ended), {}, "transaction_aborted"),
        ("POST", JOINT, joint(known) | {"offsets": {"group": "", **OFFSETS}}, {}, "invalid_group_name"),
        ("POST", JOINT, joint(known) | {"offsets": member}, {}, "member_not_found"),
        ("POST", JOINT, joint(known) | {"offsets": {"group": "g", "offsets": far}}, {}, "offset_out_of_range"),
        ("POST", RECORDS, ROW, {"fairlead-transaction": "17"}, "malformed_request"),
        ("POST", RECORDS, ROW, {"fairlead-transaction": known, "idempotency-key": "k"}, "malformed_request"),
        ("POST", RECORDS, ROW, {"fairlead-transaction": known, "fairlead-base-sequence": "0"}, "malformed_request"),
        ("POST", f"{RECORDS}?acks=1", ROW, {"fairlead-transaction": known}, "unknown_option"),
        ("POST", RECORDS, ROW, {"fairlead-transaction": "999.0"}, "transaction_not_found"),
        ("POST", RECORDS, ROW, {"fairlead-transaction": ended}, "transaction_aborted"),
        ("POST", f"{PARTITION}/records", b"", binary, "malformed_request"),
        ("POST", "/v1/produce", b"", {**FRAMED, COMMIT: "17"}, "malformed_request"),
        ("POST", "/v1/produce?acks=1", b"", {**FRAMED, COMMIT: known}, "unknown_option"),
        ("POST", "/v1/produce", b"", {**FRAMED, COMMIT: known}, "malformed_request"),
        ("GET", f"{BEGIN}/nothing", None, {}, "transaction_not_found"),
        ("GET", f"{BEGIN}?state=hanging", None, {}, "malformed_request"),
        ("DELETE", f"{BEGIN}/nothing", None, {}, "transaction_not_found"),
        ("GET", f"{PARTITION}/records?offset=0&isolation=serializable", None, {}, "malformed_request"),
        ("GET", "/v1/groups/g/lag?isolation=serializable", None, {}, "malformed_request"),
        ("GET", "/v1/topics/orders/partitions/9/transactions", None, {}, "partition_not_found"),
    ]  # fmt: skip


def bad_aborts(known: str) -> list[tuple[str, str, object, dict[str, str], str]]:
    """Return aborts of the open transaction `known` with a bad body, in the same form."""
    return [
        ("POST", f"{BEGIN}/{known}:abort", b"{", {}, "malformed_request"),
        ("POST", f"{BEGIN}/{known}:abort", b"{partitions}", {}, "malformed_request"),
        ("POST", f"{BEGIN}/{known}:abort", {"partition": []}, {}, "unknown_option"),
        ("POST", f"{BEGIN}/{known}:abort", {"partitions": [{"partitions": [0]}]}, {}, "malformed_request"),
        ("POST", f"{BEGIN}/{known}:abort", b"{}", {"content-type": "text/plain"}, "unsupported_media_type"),
        ("POST", f"{BEGIN}/billing:abort", b"{", {}, "malformed_request"),
    ]  # fmt: skip


async def send(api: Calls, method: str, path: str, body: object, headers: dict[str, str]) -> Answer:
    """Send a bad call."""
    if body is None or isinstance(body, bytes):
        return await api.call(method, path, body, {**JSON, **headers})
    return await api.post(path, body, **headers)


async def test_bad_input_is_refused_and_changes_nothing(api: Calls) -> None:
    """Every bad call is refused with its code, stores nothing, and leaves the open transaction usable."""
    await api.post("/v1/producers", {"name": "plain"})
    ended = await begin(api)
    await api.call("POST", f"{BEGIN}/{ended}:abort")
    known = await begin(api, name="billing")
    found = {}
    for method, path, body, headers, code in bad_bodies(known, ended) + bad_aborts(known):
        answer = await send(api, method, path, body, headers)
        found[method, path, str(body)[:80], str(headers)] = (answer.code, code)
    repeated = await api.post(
        f"{BEGIN}/{ended}:abort", {"partitions": [{"topic": "orders", "partitions": [0]}]}
    )
    kept = await api.post(RECORDS, {"records": [{"value": "kept"}]}, Fairlead_Transaction=known)
    done = await api.post(f"{BEGIN}/{known}:commit", {})

    assert {call: codes for call, codes in found.items() if codes[0] != codes[1]} == {}
    assert (repeated.json["state"], repeated.json["duplicate"]) == ("aborted", True)
    assert (kept.status, done.json["state"]) == (200, "committed")
    assert await committed(api, 1) == ["kept"]
    assert (await api.call("GET", "/v1/groups/g")).status == 404


async def test_a_forgotten_name_begins_again(api: Calls) -> None:
    """When the name of a producer is deleted, its open transaction is aborted and cannot be committed."""
    begun = await begin(api, name="nightly")
    await api.post(RECORDS, ROW, Fairlead_Transaction=begun)
    forgotten = await api.call("DELETE", f"{BEGIN}/nightly")
    late = await api.post(f"{BEGIN}/{begun}:commit", {})
    following = await begin(api, name="nightly")
    await api.post(RECORDS, {"records": [{"value": "kept"}]}, Fairlead_Transaction=following)
    await api.post(f"{BEGIN}/{following}:commit", {})

    assert (forgotten.status, late.code) == (204, "transaction_not_found")
    assert following.partition(".")[0] != begun.partition(".")[0]
    assert await committed(api, 1) == ["kept"]


async def test_a_commit_with_offsets_names_the_coordinator_of_the_group(tmp_path: Path) -> None:
    """Only the group's coordinator commits with offsets; a broker that must not forward the call names it."""
    cluster = await Cluster.open(tmp_path)
    never = {"fairlead-forward": "never"}
    try:
        await cluster.start(1, 2, 3)
        await cluster.topic("orders")
        async with AsyncExitStack() as stack:
            apis = [
                await stack.enter_async_context(Calls(str(broker.addresses.data)))
                for broker in cluster.brokers.values()
            ]
            body = {"offsets": {"group": "bookkeeping", **OFFSETS}}
            first = await apis[0].post(f"{BEGIN}/{await begin(apis[0])}:commit", body)
            coordinator = (await apis[0].call("GET", "/v1/groups/bookkeeping")).json["coordinator"]
            address = str(cluster.brokers[coordinator].addresses.data)
            others = [api for broker, api in zip(cluster.brokers, apis, strict=True) if broker != coordinator]
            known = [await begin(api) for api in others]
            refused = [
                await api.post(path, fields | body, **never)
                for api, each in zip(others, known, strict=True)
                for path, fields in ((f"{BEGIN}/{each}:commit", {}), (JOINT, joint(each)))
            ]
            states = [(await others[0].call("GET", f"{BEGIN}/{each}")).json["state"] for each in known]
            done = [
                await others[0].post(f"{BEGIN}/{known[0]}:commit", body),
                await others[1].post(JOINT, joint(known[1]) | body),
            ]
    finally:
        await cluster.close()

    assert first.status == 200
    assert [(answer.status, answer.code) for answer in refused] == [(421, "not_coordinator")] * 4
    assert {answer.json["address"] for answer in refused} == {address}
    assert states == ["open", "open"]
    assert [answer.status for answer in done] == [200, 200]


async def test_a_cluster_of_level_1_refuses_transactions(
    one_broker: Callable[[], AbstractAsyncContextManager[Calls]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers of the first release may be in the cluster, no call and no batch begins or joins a transaction."""
    for module in (bootstrap, cluster_entry):
        monkeypatch.setattr(module, "FEATURE_LEVEL", 1)
    async with one_broker() as api:
        begun = await api.post(BEGIN, {"name": "billing"})
        written = await api.post(RECORDS, ROW, Fairlead_Transaction="1.0")
        ends = [await api.post(f"{BEGIN}/1.0:{how}", {}) for how in ("commit", "abort")]
        offsets_of_group = {"offsets": {"group": "g", **OFFSETS}}
        ends += [
            await api.post(f"{BEGIN}/1.0:commit", offsets_of_group),
            await api.post(JOINT, joint("1.0")),
            await api.call("POST", "/v1/produce", b"", {**FRAMED, COMMIT: "1.0"}),
            await api.post(JOINT, joint("1.0") | offsets_of_group),
        ]
        group = await api.call("GET", "/v1/groups/g")
        producer = ProducerStamp(1, 0, 0, is_transactional=True)
        batch = await api.send(
            "orders",
            encode(record_batch([b"lost"], default_timestamp_us=TIME_US), producer=producer).to_bytes(),
        )
        listed = await api.call("GET", BEGIN)
        offsets = (await api.call("GET", f"{PARTITION}/offsets")).json

    assert {answer.code for answer in (begun, written, *ends)} == {"not_possible_now"}
    assert batch.code == "malformed_batch"
    assert listed.json["items"] == []
    assert (offsets["high_watermark"], group.status) == (0, 404)
