"""The daemon: the application on a Unix socket that only this user can reach, one daemon per socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from tuner.cache.folder import make_folder
from tuner.cache.lock import Lock, LockTaken, take_lock
from tuner.daemon.app import create_app
from tuner.daemon.background import Background, TuningSettings
from tuner.daemon.jobs import Jobs, jobs_folder, jobs_held
from tuner.errors import DaemonError
from tuner.lookup.reader import StoreReader

# sun_path of a socket address holds 108 bytes on Linux, 104 on BSD, the last of them 0
PATH_LIMIT_BYTES = 107 if sys.platform == "linux" else 103
STOP_S = 2


def serve(
    store: Path, socket_path: Path, announce: Callable[[dict[str, Any]], None], tuning: TuningSettings | None = None
) -> None:
    """Serve `store` on `socket_path` until SIGTERM or SIGINT; the socket is removed in the end.

    announce: called once with store, generation, socket and pid, when the socket is there. tuning: how to tune what is reported
    as unknown; None not to.

    Raises DaemonError where the socket is in use or cannot be made, or another daemon tunes for the store; StoreError where the
    store is there and cannot be read.
    """
    generation = StoreReader(store).generation()
    alone = contextlib.nullcontext() if tuning is None else jobs_held(store)
    with _listening(socket_path) as listener, alone:
        announce({"store": str(store.absolute()), "generation": generation, "socket": str(socket_path), "pid": os.getpid()})
        asyncio.run(_serve(store, listener, tuning))


async def _serve(store: Path, listener: socket.socket, tuning: TuningSettings | None) -> None:
    background = None
    if tuning is not None:
        background = Background(tuning, Jobs(jobs_folder(store)))
        # this daemon may have another toolchain than the last one
        background.jobs.forget_given_up()
    config = uvicorn.Config(
        create_app(store, background),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )
    server = uvicorn.Server(config)
    _stop_on_signals(server)
    if background is None:
        await server.serve(sockets=[listener])
        return
    task = asyncio.create_task(background.run())
    task.add_done_callback(background.ended)
    try:
        await server.serve(sockets=[listener])
    finally:
        task.cancel()
        await asyncio.wait([task])


def _stop_on_signals(server: uvicorn.Server) -> None:
    """Stop cleanly, also where the signal comes before uvicorn listens to it.

    uvicorn puts its own handlers in place of these while it serves, and raises the signal once more when it has stopped: that one
    comes here too, and does nothing.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`. Raises DaemonError."""
    if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
        raise DaemonError(f"socket path {path} is longer than {PATH_LIMIT_BYTES} bytes: give a shorter one with --socket")
    _private_folder(path.parent)
    lock = _lock_socket(path)
    try:
        _remove_dead(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # umask rather than chmod afterwards: at no time may others connect
        umask = os.umask(0o077)
        try:
            listener.bind(os.fspath(path))
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise DaemonError(f"cannot listen on socket {path}: {error.strerror}") from error
        finally:
            os.umask(umask)
        made = os.lstat(path)
        try:
            yield listener
        finally:
            listener.close()
            with contextlib.suppress(OSError):
                if os.path.samestat(made, os.lstat(path)):
                    path.unlink()
    finally:
        lock.release()


def _private_folder(folder: Path) -> None:
    """Make `folder` for this user alone; one that is there must not be writable by others. Raises DaemonError."""
    try:
        private = make_folder(folder)
    except OSError as error:
        raise DaemonError(f"cannot make the folder {folder} for the socket: {error.strerror}") from error
    if not private:
        raise DaemonError(f"others can write to {folder}: put the socket in a folder of your own (mode 0700) with --socket")


def _lock_socket(path: Path) -> Lock:
    try:
        return take_lock(path.with_name(path.name + ".lock"))
    except LockTaken as taken:
        raise DaemonError(f"socket {path} is in use by {taken.holder}") from None
    except OSError as error:
        raise DaemonError(f"cannot lock socket {path}: {error.strerror}") from error


def _remove_dead(path: Path) -> None:
    """Remove the socket that a killed daemon left behind. Raises DaemonError on anything else at `path`.

    The lock says that no daemon of ours listens; whether another program does is seen by connecting.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise DaemonError(f"{path} is there and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise DaemonError(f"cannot tell whether socket {path} is in use: {error.strerror or error}") from error
    raise DaemonError(f"socket {path} is in use by another program")
