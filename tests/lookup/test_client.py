"""The client: it never raises, never exceeds its deadline, and believes nobody."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from missed import report
from stored import EVIL, GROUPS, KNOB, NATIVE, program, query, settled, winner

from tuner.answer import Answer, ProgramAnswer
from tuner.cache.sqlite import SqliteStore
from tuner.lookup.client import Client
from tuner.plan import Plan
from tuner.settings import Settings
from tuner.workload.miss_report import MissReport

Reply = Callable[[socket.socket], None]
# far more than a test takes, far less than a hung one may
PATIENT_MS = 60_000.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short, private folder: the path of a Unix socket holds about 100 bytes."""
    path = Path(tempfile.mkdtemp(prefix="tuner-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def settings(folder: Path) -> Settings:
    """A store that knows one winner, and no daemon."""
    with SqliteStore(folder / "store.db") as store:
        store.add_program(program(), [query()], "m:f")
        store.record_winner(winner(plan=NATIVE))
    return Settings(disabled=False, store=folder / "store.db", socket=folder / "d.sock", deadline_ms=PATIENT_MS)


@contextmanager
def daemon(path: Path, reply: Reply) -> Iterator[list[bytes]]:
    """A server on the socket `path` that does `reply` to every connection; gives the requests it got."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    requests: list[bytes] = []

    def run() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    requests.append(request_from(peer))
                    reply(peer)
                except OSError:
                    pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        # wakes accept(), which close() alone does not
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)
        assert not thread.is_alive()


def request_from(peer: socket.socket) -> bytes:
    """One whole request, whose body is a JSON value."""
    got = b""
    while not got.endswith(b"}"):
        got += peer.recv(65536)
    return got


def http(body: bytes, status: str = "200 OK") -> Reply:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    return lambda peer: peer.sendall(head.encode() + body)


def answering(value: Any) -> Reply:
    return http(json.dumps(value).encode())


def answer_json(**changes: Any) -> dict[str, Any]:
    return {**Answer(KNOB, "exact", 7, "because", GROUPS, 2.0, 1.9, 2.1).to_json(), **changes}


def silent(peer: socket.socket) -> None:
    """Takes the request and says nothing until the client has gone."""
    peer.recv(1)


def dripping(peer: socket.socket) -> None:
    """Never late by a single byte, and never done."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        peer.sendall(b" ")
        threading.Event().wait(0.001)


def endless(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        peer.sendall(b"[" * 65536)


def test_without_a_daemon_the_store_answers(settings):
    client = Client(settings)
    assert client.lookup(query()).plan == NATIVE
    assert client.source == "store"
    assert client.lookup(query("other")).tier == "default"
    assert client.program(program()).known is True
    assert client.program(program("other")).known is False
    assert client.counts == {"hit": 1, "miss": 1, "program_hit": 1, "program_miss": 1}
    assert client.warnings == {}


def test_the_daemon_is_asked_first(settings):
    with daemon(settings.socket, answering(answer_json())) as requests:
        client = Client(settings)
        assert client.lookup(query()) == Answer(KNOB, "exact", 7, "because", GROUPS, 2.0, 1.9, 2.1)
    assert client.source == "daemon"
    assert client.counts == {"hit": 1}
    head, body = requests[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/lookup HTTP/1.1\r\n")
    assert json.loads(body) == query().to_json()


def test_the_daemon_answers_for_whole_programs(settings):
    known = ProgramAnswer(True, 7, {"k": Answer(KNOB, "exact", 7, "because")})
    with daemon(settings.socket, answering(known.to_json())):
        client = Client(settings)
        found = client.program(program())
    assert found == known
    assert found.answers == known.answers
    assert (client.source, client.counts) == ("daemon", {"program_hit": 1})


BAD_DAEMONS = {
    "refuses": (http(b'{"error":"no"}', "400 Bad Request"), "daemon_error"),
    "fails": (http(b'{"error":"fault"}', "500 Internal Server Error"), "daemon_error"),
    "older protocol": (http(b"not found", "404 Not Found"), "daemon_error"),
    "hangs up": (lambda peer: None, "daemon_error"),
    "speaks something else": (lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "daemon_error"),
    "no JSON": (http(b"<html>"), "daemon_error"),
    "deep JSON": (http(b"[" * 200_000), "daemon_error"),
    "no object": (answering([1]), "daemon_error"),
    "no answer": (answering({}), "daemon_error"),
    "unknown tier": (answering(answer_json(tier="certain")), "daemon_error"),
    "numbers that are none": (answering(answer_json(speedup="fast")), "daemon_error"),
    "speed-up that is no number": (answering(answer_json(speedup=float("nan"))), "daemon_error"),
    "a plan on a miss": (answering(answer_json(tier="default")), "daemon_error"),
    "groups that are none": (answering(answer_json(groups=[[3]])), "invalid_plan"),
    "leaves that are none": (answering(answer_json(groups=[["1:../../x"]])), "invalid_plan"),
    "undeclared knob": (answering(answer_json(plan=EVIL.to_json())), "invalid_plan"),
    "plan of a newer schema": (answering(answer_json(plan={"schema": 2})), "invalid_plan"),
    "endless": (endless, "daemon_error"),
}


@pytest.mark.parametrize(("reply", "outcome"), BAD_DAEMONS.values(), ids=BAD_DAEMONS.keys())
def test_a_daemon_that_answers_badly_costs_its_answer_and_one_warning(settings, caplog, reply, outcome):
    with daemon(settings.socket, reply) as requests, caplog.at_level(logging.WARNING):
        client = Client(settings)
        for _ in range(3):
            assert client.lookup(query()).plan == NATIVE
            assert client.source == "store"
    assert len(requests) == 1, "a daemon that failed is not asked again"
    assert client.counts == {"hit": 3, outcome: 1}
    assert list(client.warnings) == [outcome]
    assert len(caplog.records) == 1


def test_a_program_answer_with_one_bad_plan_is_not_used(settings):
    value = ProgramAnswer(True, 7, {"k": Answer(KNOB, "exact", 7, "because")}).to_json()
    value["answers"]["l"] = answer_json(plan=EVIL.to_json())
    with daemon(settings.socket, answering(value)):
        client = Client(settings)
        assert [answer.plan for answer in client.program(program()).answers.values()] == [NATIVE]
    assert client.counts == {"program_hit": 1, "invalid_plan": 1}


@pytest.mark.parametrize("reply", [silent, dripping])
def test_a_slow_daemon_is_given_up_and_the_store_answers(folder, settings, reply):
    hasty = Settings(disabled=False, store=settings.store, socket=settings.socket, deadline_ms=1000.0)
    with daemon(settings.socket, reply):
        client = Client(hasty)
        assert client.lookup(query()).plan == NATIVE
    assert client.source == "store"
    assert client.counts == {"hit": 1, "daemon_error": 1}


def test_when_the_deadline_is_used_up_the_default_comes_at_once(settings, caplog):
    client = Client(Settings(disabled=False, store=settings.store, socket=settings.socket, deadline_ms=1e-6))
    client.lookup(query())
    with daemon(settings.socket, answering(answer_json())) as requests:
        for _ in range(2):
            answer = client.lookup(query())
            assert (answer.plan, answer.tier, client.source) == (Plan(), "default", "none")
            assert "deadline" in answer.reason
        assert client.program(program()) == ProgramAnswer(False, 0)
    assert requests == []
    assert client.counts["deadline"] >= 3
    assert len(caplog.records) == 1


def test_a_disabled_client_asks_nobody(settings):
    client = Client(Settings(disabled=True, store=settings.store, socket=settings.socket))
    with daemon(settings.socket, answering(answer_json())) as requests:
        assert client.lookup(query()).plan == Plan()
        assert client.program(program()).known is False
    assert requests == []
    assert client.counts == {"disabled": 2, "miss": 1, "program_miss": 1}


def test_the_socket_of_a_dead_daemon_is_passed_over(settings):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(settings.socket))
    listener.close()
    client = Client(settings)
    assert client.lookup(query()).plan == NATIVE
    assert client.counts == {"hit": 1, "daemon_error": 1}


def test_a_socket_in_a_folder_that_others_can_write_to_is_ignored_with_a_reason(folder, settings):
    with daemon(settings.socket, answering(answer_json())) as requests:
        folder.chmod(0o777)
        client = Client(settings)
        assert client.lookup(query()).plan == NATIVE
    assert requests == []
    assert client.counts == {"hit": 1, "socket_ignored": 1}
    assert "others can write to" in client.warnings["socket_ignored"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_socket_of_another_user_is_ignored_with_a_reason(settings):
    with daemon(settings.socket, answering(answer_json())) as requests:
        os.chown(settings.socket, 65534, 65534)
        client = Client(settings)
        assert client.lookup(query()).plan == NATIVE
    assert requests == []
    assert "belongs to another user" in client.warnings["socket_ignored"]


def test_a_file_where_the_socket_should_be_is_ignored_with_a_reason(settings):
    settings.socket.touch()
    client = Client(settings)
    assert client.lookup(query()).plan == NATIVE
    assert "is not a socket" in client.warnings["socket_ignored"]


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(5000)


@pytest.mark.parametrize("damage", [garbage, folder_instead, pipe_instead, cut])
def test_a_broken_store_gives_the_default_and_one_warning(settings, damage, caplog):
    damage(settings.store)
    client = Client(settings)
    for _ in range(2):
        answer = client.lookup(query())
        assert (answer.plan, answer.tier, client.source) == (Plan(), "default", "none")
    assert client.program(program()) == ProgramAnswer(False, 0)
    assert client.counts == {"store_error": 3, "miss": 2, "program_miss": 1}
    assert len(caplog.records) == 1


def test_a_store_that_is_gone_is_an_ordinary_miss(settings):
    settings.store.unlink()
    client = Client(settings)
    assert client.lookup(query()).reason == "no store yet"
    assert client.counts == {"miss": 1}


def test_a_poisoned_store_gives_the_default_and_is_counted(settings):
    import sqlite3

    connection = sqlite3.connect(settings.store, isolation_level=None)
    connection.execute("UPDATE winners SET plan = ?", (json.dumps(EVIL.to_json()),))
    connection.close()
    client = Client(settings)
    answer = client.lookup(query())
    assert (answer.plan, answer.tier) == (Plan(), "default")
    assert client.counts == {"miss": 1, "invalid_plan": 1}


def test_a_query_that_makes_no_sense_is_no_error(settings):
    client = Client(settings)
    nonsense = query(ambient={"threads": float("nan"), "passes": object()})
    assert client.lookup(nonsense).plan == Plan()
    assert client.program(nonsense) == ProgramAnswer(False, 0)
    assert client.counts == {"store_error": 2, "miss": 1, "program_miss": 1}


def test_threads_may_share_a_client(settings):
    client = Client(settings)
    plans: list[Plan] = []
    threads = [threading.Thread(target=lambda: plans.append(client.lookup(query()).plan)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert plans == [NATIVE] * 8
    assert client.counts == {"hit": 8}


def test_a_forked_process_may_use_its_parents_client(settings):
    client = Client(settings)
    client.lookup(query())
    child = os.fork()
    if child == 0:
        os._exit(0 if client.lookup(query()).plan == NATIVE else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.lookup(query()).plan == NATIVE


def test_a_settled_default_is_a_hit(settings):
    with SqliteStore(settings.store) as store:
        store.record_winner(settled())
    client = Client(settings)
    assert client.lookup(query()).winner == "default"
    assert client.counts == {"hit": 1}


def test_an_answer_without_end_is_cut_off(settings):
    with daemon(settings.socket, endless):
        client = Client(settings)
        assert client.lookup(query()).plan == NATIVE
    assert "larger than" in client.warnings["daemon_error"]


def test_a_report_is_taken_or_not_as_the_daemon_says(settings):
    with daemon(settings.socket, answering({"accepted": True, "reason": ""})) as requests:
        assert Client(settings).report(report()) == ""
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/miss ")
    assert MissReport.from_json(json.loads(body)) == report()
    settings.socket.unlink()
    with daemon(settings.socket, answering({"accepted": "no", "reason": "too many"})):
        assert Client(settings).report(report()) == "not wanted any more"


@pytest.mark.parametrize("reply", [silent, dripping, http(b"{}", "400 Bad Request"), http(b"nonsense"), answering([])])
def test_after_a_report_that_failed_nothing_more_is_reported(settings, caplog, monkeypatch, reply):
    monkeypatch.setattr("tuner.lookup.client.REPORT_TIMEOUT_S", 0.2)
    client = Client(settings)
    with daemon(settings.socket, reply) as requests:
        assert client.report(report()) == "report error"
        assert client.report(report()) == "report error before"
    assert client.counts == {"report_error": 1}
    assert caplog.text.count("cannot report a program to the daemon") == 1
    assert len(requests) == 1


def test_a_report_to_nobody_and_one_that_is_too_large_are_not_sent(settings, monkeypatch):
    assert Client(settings).report(report()) == "no daemon"
    monkeypatch.setattr("tuner.lookup.client.REPORT_LIMIT_BYTES", 10)
    with daemon(settings.socket, silent) as requests:
        assert Client(settings).report(report()) == "too large"
        assert requests == []
