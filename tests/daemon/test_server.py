"""The daemon as a process: one per socket, private, clean in its end, and never needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from missed import report
from stored import KNOB, NATIVE, query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.daemon.jobs import Jobs, jobs_folder
from tuner.lookup.client import Client
from tuner.lookup.unix_http import request
from tuner.settings import Settings


@pytest.fixture
def client(daemons):
    return Client(Settings(disabled=False, store=daemons.store, socket=daemons.socket, deadline_ms=60_000.0))


def record(daemons, *winners):
    with SqliteStore(daemons.store) as store:
        for one in winners:
            store.record_winner(one)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_says_what_it_serves_and_stops_cleanly(daemons, number):
    record(daemons, winner())
    process = daemons.start()
    assert daemons.hello(process)["store"] == str(daemons.store)
    process.send_signal(number)
    assert daemons.ended(process) == (0, f"serving {daemons.store} (generation 1) on {daemons.socket}\n")
    assert not daemons.socket.exists()


def test_a_daemon_stops_while_a_client_keeps_its_connection(daemons):
    process = daemons.started()
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(daemons.socket))
        process.send_signal(signal.SIGTERM)
        assert daemons.ended(process)[0] == 0


def test_the_client_gets_its_answers_from_the_daemon(daemons, client):
    record(daemons, winner(plan=NATIVE))
    daemons.started()
    assert client.lookup(query()).plan == NATIVE
    assert client.source == "daemon"
    assert client.warnings == {}
    assert request(daemons.socket, "GET", "/v2/status")["counts"]["hit"] == 1


def test_what_a_sweep_writes_is_served_at_once(daemons, client):
    daemons.started()
    assert client.lookup(query()).tier == "default"
    with SqliteStore(daemons.store) as store:
        for generation, plan in enumerate((NATIVE, KNOB), start=1):
            store.record_winner(winner(plan=plan))
            answer = client.lookup(query())
            assert (answer.plan, answer.generation, client.source) == (plan, generation, "daemon")


def test_when_the_daemon_is_killed_the_client_reads_the_store(daemons, client):
    record(daemons, winner())
    process = daemons.started()
    assert client.lookup(query()).plan == NATIVE
    process.kill()
    process.wait()
    assert client.lookup(query()).plan == NATIVE
    assert client.source == "store"
    assert client.counts == {"hit": 2, "daemon_error": 1}


def test_only_this_user_can_reach_the_socket(daemons):
    daemons.started()
    assert daemons.socket.stat().st_mode & 0o077 == 0
    assert daemons.socket.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_named(daemons):
    daemons.socket.parent.touch()
    code, error = daemons.ended(daemons.start())
    assert (code, error) == (5, f"Error: cannot make the folder {daemons.socket.parent} for the socket: File exists\n")


def test_a_second_daemon_is_told_which_process_has_the_socket(daemons):
    first = daemons.started()
    assert daemons.ended(daemons.start()) == (5, f"Error: socket {daemons.socket} is in use by process {first.pid}\n")
    assert daemons.hello(first)["pid"] == first.pid


def test_one_daemon_tunes_for_a_store_others_may_serve_it(daemons):
    first = daemons.started()
    second = ("--store", str(daemons.store), "--socket", str(daemons.socket.with_name("e.sock")))
    code, error = daemons.ended(daemons.start(*second))
    told = f"process {first.pid} tunes for store {daemons.store} already: `tuner serve --no-tune` only serves it"
    assert (code, error) == (5, f"Error: {told}\n")
    assert not daemons.socket.with_name("e.sock").exists()
    daemons.socket = daemons.socket.with_name("e.sock")
    daemons.hello(daemons.start(*second, "--no-tune"))
    first.kill()
    first.wait()
    daemons.socket = daemons.socket.with_name("f.sock")
    daemons.started()


def test_what_the_last_daemon_gave_up_is_wanted_of_the_next(daemons, client):
    jobs = Jobs(jobs_folder(daemons.store))
    jobs.put(replace(jobs.add(report()), state="refused", reason="another toolchain"))
    daemons.started()
    assert client.program(report().program).wanted
    assert request(daemons.socket, "GET", "/v2/jobs")["jobs"] == []


def test_of_many_daemons_started_at_once_one_serves(daemons):
    started = [daemons.start() for _ in range(4)]
    pids = {process.pid for process in started}
    end, losers = time.monotonic() + 60.0, []
    while len(losers) < 3 and time.monotonic() < end:
        losers = [process for process in started if process.poll() is not None]
        time.sleep(0.02)
    (left,) = pids - {process.pid for process in losers}
    assert [daemons.ended(process)[0] for process in losers] == [5, 5, 5]
    assert daemons.hello(next(process for process in started if process.pid == left))["pid"] == left


def test_the_socket_of_a_killed_daemon_is_taken_over(daemons):
    first = daemons.started()
    first.kill()
    first.wait()
    assert daemons.socket.exists()
    daemons.started()


def test_a_socket_of_another_program_is_left_alone(daemons):
    daemons.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(daemons.socket))
        theirs.listen()
        code, error = daemons.ended(daemons.start())
        assert (code, error) == (5, f"Error: socket {daemons.socket} is in use by another program\n")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(daemons.socket))


def test_a_file_at_the_sockets_place_is_left_alone(daemons):
    daemons.socket.parent.mkdir(mode=0o700)
    daemons.socket.write_text("mine")
    assert daemons.ended(daemons.start()) == (5, f"Error: {daemons.socket} is there and is not a socket\n")
    assert daemons.socket.read_text() == "mine"


def test_a_folder_that_others_can_write_to_is_refused(daemons):
    daemons.socket.parent.mkdir()
    daemons.socket.parent.chmod(0o777)
    code, error = daemons.ended(daemons.start())
    assert code == 5
    assert error.startswith(f"Error: others can write to {daemons.socket.parent}")


def test_a_socket_path_that_is_too_long_is_refused_in_one_line(daemons, folder):
    path = folder / ("x" * 120)
    code, error = daemons.ended(daemons.start("--store", str(daemons.store), "--socket", str(path)))
    assert code == 5
    assert error.startswith(f"Error: socket path {path} is longer than")


def test_a_store_that_cannot_be_read_is_not_served(daemons):
    daemons.store.write_bytes(b"garbage " * 1000)
    code, error = daemons.ended(daemons.start())
    assert code == 4
    assert error.startswith(f"Error: cannot read store {daemons.store}")
    assert not daemons.socket.exists()


def test_serving_loads_no_heavy_package(tmp_path):
    code = (
        "import sys, tuner.cli.main, tuner.cli.serve, tuner.daemon.server, tuner.daemon.app, pathlib\n"
        "tuner.daemon.app.create_app(pathlib.Path(sys.argv[1]))\n"
        "print([name for name in ('torch', 'optuna', 'sqlite_utils', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store.db")], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
