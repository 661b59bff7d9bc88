"""Answers to a drain and an undrain through any broker."""


async def test_the_answer_shows_the_requested_state(three) -> None:
    """The answer to a drain or an undrain contains the requested state, whichever broker answers."""
    for broker in (1, 2, 3):
        for asked in (1, 2, 3):
            api = three.at(asked)
            drained = await api.call("POST", f"/v1/brokers/{broker}:drain")
            undrained = await api.call("POST", f"/v1/brokers/{broker}:undrain")

            assert (drained.status, drained.json["state"], drained.json["cordoned"]) == (
                200,
                "draining",
                True,
            )
            assert (undrained.status, undrained.json["state"], undrained.json["cordoned"]) == (
                200,
                "running",
                False,
            )


async def test_the_lists_say_the_same_as_the_answer(api) -> None:
    """The answer to a drain agrees with the brokers, cluster and metadata lists of the answering broker."""
    drained = (await api.call("POST", "/v1/brokers/0:drain")).json
    listed = (await api.get("/v1/brokers")).json["items"]
    described = (await api.get("/v1/cluster")).json["brokers"]
    known = (await api.get("/v1/metadata")).json["brokers"]

    assert listed == described == [drained]
    assert [each["state"] for each in known] == ["draining"]
