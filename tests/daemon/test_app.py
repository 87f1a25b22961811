"""What the service answers over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stored import KNOB, NATIVE, measurement, program, query, settled, winner

import tuner
from tuner.answer import Answer, ProgramAnswer
from tuner.cache.sqlite import SqliteStore
from tuner.daemon.app import REQUEST_LIMIT, create_app
from tuner.lookup.reader import StoreReader
from tuner.settings import PROTOCOL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        store.add_graph(query("a").workload_key, {})
        store.add_program(program(), [query("a"), query("b")], "m:f")
        store.add_measurement(measurement())
        store.record_winner(winner(query("a"), NATIVE))
        store.record_winner(settled(query("b")))
    return path


def test_the_greeting_gives_protocol_and_capabilities(path, call):
    status, greeting = call(create_app(path), "GET", "/v2/hello")
    assert status == 200
    assert greeting == {
        "protocol": PROTOCOL,
        "version": tuner.__version__,
        "capabilities": ["lookup", "program", "status", "jobs", "stats"],
        "store": str(path),
        "pid": os.getpid(),
    }


@pytest.mark.parametrize("asked", [query("a"), query("b"), query("other"), query("a", ambient={"threads": 2})])
def test_a_look_up_gives_what_the_store_says(path, call, asked):
    status, value = call(create_app(path), "POST", "/v2/lookup", asked.to_json())
    assert (status, Answer.from_json(value)) == (200, StoreReader(path).answer(asked))


@pytest.mark.parametrize("asked", [program(), program("other")])
def test_a_program_gives_what_the_store_says(path, call, asked):
    status, value = call(create_app(path), "POST", "/v2/program", asked.to_json())
    answer, expected = ProgramAnswer.from_json(value), StoreReader(path).program(asked)
    assert (status, answer, answer.answers) == (200, expected, expected.answers)


def test_a_body_may_come_in_pieces(path, call):
    import json

    text = json.dumps(query("a").to_json()).encode()
    status, value = call(create_app(path), "POST", "/v2/lookup", [text[:10], text[10:11], text[11:]])
    assert (status, value["winner"]) == (200, "plan")


def test_the_current_generation_is_served(path, call):
    app = create_app(path)
    assert call(app, "POST", "/v2/lookup", query("a").to_json())[1]["generation"] == 2
    with SqliteStore(path) as store:
        store.record_winner(winner(query("a"), KNOB))
    answer = Answer.from_json(call(app, "POST", "/v2/lookup", query("a").to_json())[1])
    assert (answer.generation, answer.plan) == (3, KNOB)


def test_the_status_counts_look_ups_by_outcome(path, call):
    app = create_app(path)
    for asked in (query("a"), query("b"), query("a"), query("other"), query("a", ambient={"threads": 2})):
        call(app, "POST", "/v2/lookup", asked.to_json())
    call(app, "POST", "/v2/program", program().to_json())
    call(app, "POST", "/v2/program", program("other").to_json())
    call(app, "POST", "/v2/lookup", b"{")
    status, value = call(app, "GET", "/v2/status")
    assert status == 200
    assert value.pop("uptime_s") >= 0
    assert value == {
        "pid": os.getpid(),
        "version": tuner.__version__,
        "store": str(path),
        "generation": 2,
        "winners": 2,
        "measurements": 1,
        "graphs": 1,
        "tuning": None,
        "counts": {
            "hit": 5,
            "miss": {"threads": 1, "unknown_graph": 1},
            "program_hit": 1,
            "program_miss": 1,
            "errors": {"bad_request": 1},
        },
    }


def test_a_store_that_does_not_exist_yet_is_served_as_empty(tmp_path, call):
    app = create_app(tmp_path / "store.db")
    assert call(app, "POST", "/v2/lookup", query().to_json())[1]["reason"] == "no store yet"
    assert call(app, "GET", "/v2/status")[1]["generation"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        {**query().to_json(), "kind": 3},
        {**query().to_json(), "target": "cpu"},
        {**query().to_json(), "workload_key": None},
        b'{"kind":"graph","workload_key":"k","target":{},"toolchain":{},"ambient":{"x":NaN}}',
    ],
)
@pytest.mark.parametrize("where", ["/v2/lookup", "/v2/program"])
def test_a_request_that_is_no_query_is_refused_in_one_line(path, call, where, body):
    status, value = call(create_app(path), "POST", where, body)
    assert status == 400
    assert list(value) == ["error"]
    assert value["error"].startswith("not a query: ")
    assert "\n" not in value["error"]


def test_a_program_look_up_wants_a_program(path, call):
    status, value = call(create_app(path), "POST", "/v2/program", query().to_json())
    assert (status, value) == (400, {"error": "a query of kind program is asked for here, not 'graph'"})


def test_a_request_that_is_too_large_is_refused(path, call):
    pieces = [b" " * 1000] * (REQUEST_LIMIT // 1000 + 1)
    status, value = call(create_app(path), "POST", "/v2/lookup", pieces)
    assert (status, value) == (413, {"error": f"a request of more than {REQUEST_LIMIT} bytes"})


@pytest.mark.parametrize(
    ("method", "where", "status"),
    [("GET", "/v1/hello", 404), ("GET", "/", 404), ("GET", "/v2/lookup", 405), ("POST", "/v2/hello", 405)],
)
def test_what_is_not_in_the_protocol_is_said_so(path, call, method, where, status):
    assert call(create_app(path), method, where) == (status, {"error": f"{method} {where} is not part of protocol {PROTOCOL}"})


def test_a_store_that_cannot_be_read_is_unavailable_and_counted(path, call):
    app = create_app(path)
    path.write_bytes(b"garbage " * 1000)
    status, value = call(app, "POST", "/v2/lookup", query().to_json())
    assert status == 503
    assert str(path) in value["error"]


def test_a_fault_costs_one_request_and_is_logged(path, call, monkeypatch, caplog):
    app = create_app(path)
    with monkeypatch.context() as patch:
        patch.setattr(StoreReader, "answer", lambda self, asked: 1 / 0)
        status, value = call(app, "POST", "/v2/lookup", query("a").to_json())
    assert (status, value) == (500, {"error": "ZeroDivisionError (see the daemon's log)"})
    assert "ZeroDivisionError" in caplog.text
    assert call(app, "POST", "/v2/lookup", query("a").to_json())[0] == 200
    assert call(app, "GET", "/v2/status")[1]["counts"]["errors"] == {"fault": 1}
