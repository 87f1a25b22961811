"""One user of a device at a time, whichever process of whichever user he is."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from left_behind import until

from tuner.workers import device_lock
from tuner.workers.device_lock import hold_device, lock_name, try_hold_device


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device_lock, "FOLDER", tmp_path / "devices")
    return tmp_path / "devices"


HOLDER = """
import signal, sys
from pathlib import Path
from tuner.workers import device_lock
# Who is started in the background of a shell inherits that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
device_lock.FOLDER = Path(sys.argv[1])
with device_lock.hold_device("cpu", lambda reason: print(reason, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder_in(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the CPU."""
    with holder_in(folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_device_is_held_by_one(other):
    assert try_hold_device("cpu") is None
    lock = try_hold_device("GPU-1")
    assert lock is not None, "another device is free"
    lock.release()


def test_who_waits_is_told_once_for_whom_and_goes_on_when_it_is_free(other):
    told: list[str] = []
    letting_go = threading.Thread(target=lambda: until(lambda: bool(told)) and other.communicate("\n"))
    letting_go.start()
    with hold_device("cpu", told.append):
        assert told == [f"device cpu is held by process {other.pid}"]
        # To its end: whose pipes are closed under it waits for ever, and the test process with it.
        letting_go.join()
        assert other.wait() == 0


def test_a_killed_holder_holds_nothing(other):
    other.kill()
    other.wait()
    with hold_device("cpu", pytest.fail):
        pass


def test_waiting_can_be_interrupted(folder):
    with hold_device("cpu"), holder_in(folder) as process:
        assert process.stdout is not None
        assert "is held by" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) != 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()


def test_other_users_may_hold_a_device_later(folder):
    before = os.umask(0o077)
    try:
        with hold_device("cpu"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    (lock,) = folder.iterdir()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o666


def test_a_link_in_the_place_of_a_lock_is_not_followed(folder, tmp_path, caplog):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "cpu.lock").symlink_to(victim)
    with hold_device("cpu"):
        assert "without a lock" in caplog.text
    assert victim.read_text() == "precious"


def test_a_link_in_the_place_of_the_folder_is_not_followed(folder, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with hold_device("cpu"):
        assert "without a lock" in caplog.text
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_device_name_stays_in_the_folder(folder):
    with hold_device("../cuda:0"):
        assert [path.name for path in folder.iterdir()] == [".._cuda_0.lock"]
    assert lock_name("cpu") == "cpu"
