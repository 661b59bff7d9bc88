"""Topics over HTTP: create, list, describe, alter, delete, and metadata."""

import uuid
from urllib.parse import quote


async def test_create_is_idempotent(api) -> None:
    """Creating an existing topic gets 200 with the same specification, and `topic_exists` with a different one."""
    spec = {"name": "flights", "partitions": 3, "config": {"segment.bytes": 1 << 24}}
    first = await api.post("/v1/topics", spec)
    again = await api.post("/v1/topics", spec)
    other = await api.post("/v1/topics", {**spec, "partitions": 4})

    assert (first.status, again.status, other.status) == (201, 200, 409)
    assert again.json == first.json
    assert other.code == "topic_exists"
    assert uuid.UUID(first.json["topic_id"]).version == 4
    assert (first.json["state"], first.json["partitions"], first.json["replication_factor"]) == (
        "ready",
        3,
        1,
    )
    assert first.json["config"]["segment.bytes"] == {"value": str(1 << 24), "source": "topic"}
    assert first.json["config"]["durability"] == {"value": "synced", "source": "default"}


async def test_dry_run_creates_nothing(api) -> None:
    """A dry run is checked and answered like a creation and creates no topic."""
    valid = await api.post("/v1/topics?dry_run=true", {"name": "flights", "partitions": 2})
    invalid = await api.post("/v1/topics?dry_run=true", {"name": "flights", "config": {"durability": "x"}})
    described = await api.get("/v1/topics/flights")

    assert (valid.status, valid.json["partitions"]) == (200, 2)
    assert invalid.code == "invalid_config"
    assert described.code == "topic_not_found"


async def test_list_by_pages(api) -> None:
    """Each topic is listed once across pages, in order of names, with opaque cursors that are checked."""
    names = sorted(["b.2", "a-1", "c_3", "B", "0"])
    for name in names:
        await api.create(name)
    listed, after = [], ""
    while after is not None:
        page = (await api.get(f"/v1/topics?limit=2{after and '&after=' + quote(after)}")).json
        listed += [topic["name"] for topic in page["items"]]
        after = page["next"]
    broken = await api.get("/v1/topics?after=nonsense")

    assert listed == names
    assert (broken.status, broken.code) == (400, "malformed_request")


async def test_alter_configuration_and_partitions(api) -> None:
    """A topic is altered by PATCH: keys are set, null resets them, and partitions grow but never shrink."""
    await api.create("flights", 2, segment_bytes=1 << 24)
    patch = {"content-type": "application/merge-patch+json"}
    path = "/v1/topics/flights"
    grown = await api.call("PATCH", path, b'{"partitions": 4, "config": {"compression.type": "lz4"}}', patch)
    reset = await api.call("PATCH", path, b'{"config": {"segment.bytes": null}}', patch)
    shrunk = await api.call("PATCH", path, b'{"partitions": 1}', patch)
    produced = await api.post("/v1/topics/flights/partitions/3/records", [{"value": "v"}])

    assert grown.json["partitions"] == 4
    assert grown.json["config"]["compression.type"] == {"value": "lz4", "source": "topic"}
    assert reset.json["config"]["segment.bytes"]["source"] == "default"
    assert (shrunk.status, shrunk.code) == (422, "invalid_config")
    assert produced.status == 200


async def test_delete_frees_the_name(api) -> None:
    """A topic that is created with the name of a deleted topic gets a new id, and the old id is refused."""
    old = await api.create("flights")
    deleted = await api.call("DELETE", "/v1/topics/flights")
    missing = await api.call("DELETE", "/v1/topics/flights")
    new = await api.create("flights")
    expecting_old = {"fairlead-topic-id": old}
    answers = [
        await api.call("GET", "/v1/topics/flights/partitions/0/records", headers=expecting_old),
        await api.call("GET", "/v1/topics/flights/partitions/0/offsets", headers=expecting_old),
        await api.call("DELETE", "/v1/topics/flights", headers=expecting_old),
        await api.call(
            "POST",
            "/v1/topics/flights/records",
            b'[{"value": "v"}]',
            {**expecting_old, "content-type": "application/json"},
        ),
    ]

    assert (deleted.status, deleted.body) == (204, b"")
    assert missing.code == "topic_not_found"
    assert new != old
    for answer in answers:
        assert (answer.status, answer.code) == (409, "topic_recreated")
        assert (answer.json["expected"], answer.json["actual"]) == (old, new)


async def test_metadata_has_an_etag(api) -> None:
    """Metadata that is unchanged gets 304, and any change of the cluster changes its ETag."""
    topic_id = await api.create("flights", 2)
    first = await api.get("/v1/metadata?topics=flights")
    same = await api.get("/v1/metadata?topics=flights", if_none_match=first.headers["etag"])
    listed = await api.get("/v1/metadata", if_none_match=first.headers["etag"])
    await api.create("other")
    changed = await api.get("/v1/metadata?topics=flights", if_none_match=first.headers["etag"])

    assert first.json["topics"] == [
        {
            "name": "flights",
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition": index,
                    "leader": 0,
                    "leader_epoch": 0,
                    "replicas": [0],
                    "isr": [0],
                    "elr": [],
                    "offline": [],
                    "adding": [],
                    "removing": [],
                    "min_isr": 1,
                    "voters": [],
                    "write": None,
                }
                for index in range(2)
            ],
            "is_mirror": False,
            "handed_over": None,
        }
    ]
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", first.headers["etag"])
    assert listed.status == 200
    assert changed.status == 200


async def test_unchanged_topics_are_not_listed_again(api) -> None:
    """A page of topics that is unchanged gets 304; another page and any change of the cluster have another ETag."""
    for name in ("boats", "flights"):
        await api.create(name)
    first = await api.get("/v1/topics?limit=1")
    tag = first.headers["etag"]
    same = await api.get("/v1/topics?limit=1", if_none_match=tag)
    others = [
        await api.get(f"/v1/topics?{query}", if_none_match=tag)
        for query in ("limit=2", f"limit=1&after={first.json['next']}", "limit=1&config=retention.ms")
    ]
    await api.create("trains")
    changed = await api.get("/v1/topics?limit=1", if_none_match=tag)

    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    assert [each.status for each in others] == [200, 200, 200]
    assert (changed.status, changed.headers["etag"] == tag) == (200, False)


async def test_metadata_of_an_unknown_topic(api) -> None:
    """Metadata of an unknown topic is refused."""
    await api.create("flights")
    answer = await api.get("/v1/metadata?topics=flights,ghost")

    assert (answer.status, answer.code) == (404, "topic_not_found")


async def test_longest_name(api) -> None:
    """A topic name of 249 characters is accepted, in a path and on disk too."""
    name = "a" * 249
    await api.create(name)
    produced = await api.post(f"/v1/topics/{name}/records", [{"value": "v"}])

    assert produced.status == 200


async def test_topics_survive_a_restart(cluster) -> None:
    """A topic survives a restart, which raises its leader epoch."""
    epochs, ids = [], []
    for life in range(2):
        broker = await cluster.start()
        api = await cluster.client(broker.addresses.data)
        if life == 0:
            await api.create("flights")
        [topic] = (await api.get("/v1/metadata?topics=flights")).json["topics"]
        ids.append(topic["topic_id"])
        epochs.append(topic["partitions"][0]["leader_epoch"])
        await cluster.stop(broker)

    assert ids[0] == ids[1]
    assert epochs[1] > epochs[0]


async def test_a_new_topic_has_a_location(api) -> None:
    """A new topic gets 201 with Location, and a repeated creation has no Location."""
    created = await api.post("/v1/topics", {"name": "placed"})
    repeated = await api.post("/v1/topics", {"name": "placed"})

    assert (created.status, created.headers["location"]) == (201, "/v1/topics/placed")
    assert (repeated.status, "location" in repeated.headers) == (200, False)


async def test_unchanged_metadata_has_the_headers_of_the_full_answer(api) -> None:
    """A 304 answer about metadata has the same ETag and Cache-Control as a 200 answer (RFC 9110, 15.4.5)."""
    full = await api.get("/v1/metadata")
    unchanged = await api.get("/v1/metadata", if_none_match=full.headers["etag"])

    assert (full.status, unchanged.status) == (200, 304)
    for name in ("etag", "cache-control"):
        assert unchanged.headers[name] == full.headers[name]


async def test_fetched_records_vary_with_accept(api) -> None:
    """Fetch answers have `Vary: Accept`, because caches must know that one address has several media types."""
    await api.create("varied")
    await api.post("/v1/topics/varied/records", {"records": [{"value": "a"}]})
    for accept in ("application/json", "application/vnd.fairlead.batches"):
        answer = await api.get("/v1/topics/varied/partitions/0/records", accept=accept)

        assert (answer.status, answer.headers["vary"]) == (200, "accept")


async def test_a_mebibyte_a_segment_makes_nine_of_ten_mebibytes(api, broker) -> None:
    """A log of ten MiB in batches of 64 KiB rolls at least nine times and is read back whole."""
    await api.create("rolled", segment_bytes=1 << 20)
    value = "x" * (64 << 10)
    for number in range(160):
        stored = await api.post(
            "/v1/topics/rolled/partitions/0/records", {"records": [{"value": f"{number}{value}"}]}
        )
        assert stored.status == 200
    runtime = broker.broker
    [partition] = runtime.replicas

    assert partition.log.segment_count >= 9
    assert await api.end_offset("rolled") == 160
