"""A short run of `wire_mutations.py`; `make prove PROVE=wire-fuzz` sends ten million inputs."""

from __future__ import annotations

import pytest

from wire_connections import Answer, fault_of
from wire_mutations import run

INPUTS = 1_000


@pytest.mark.slow
@pytest.mark.parametrize("stranger", [False, True])
def test_bad_inputs_end_no_broker(*, stranger: bool) -> None:
    """Each bad input gets a catalogued answer or a closed connection, with and without access rules."""
    report = run(INPUTS, None, seed=1, stranger=stranger)

    assert (report["failures"], report["broker_exits"]) == ([], 0)
    assert report["inputs"] >= INPUTS
    assert len(report["inputs_by_kind"]) == 5
    # The broker without access rules accepts enough inputs to test the code behind the checks of a request.
    served = report["answers_by_status"].get("200", 0)
    assert served == 0 if stranger else served > INPUTS // 20


@pytest.mark.parametrize(
    ("answer", "empty"),
    [
        (Answer(500, {}, b"Internal server error"), False),
        (Answer(500, {}, b""), True),
        (Answer(400, {b"content-type": b"text/plain"}, b"no"), True),
        (Answer(400, {}, b""), False),
        (
            Answer(400, {b"content-type": b"application/problem+json"}, b'{"code": "odd", "status": 400}'),
            False,
        ),
    ],
)
def test_bad_answers_are_noticed(answer: Answer, *, empty: bool) -> None:
    """Failures, refusals without a problem and unknown problems count as faults of an answer."""
    assert fault_of(answer, empty=empty) is not None
