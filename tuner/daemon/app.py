"""The service's HTTP interface: which winners does a store hold? JSON over HTTP; version and capabilities are in the greeting.

    GET  /v2/hello     {protocol, version, capabilities, store, pid}
    POST /v2/lookup    a query (tuner.target.Query) -> an answer (tuner.answer.Answer)
    POST /v2/program   a query of kind "program" -> a program answer (tuner.answer.ProgramAnswer)
    GET  /v2/status    {pid, uptime_s, store, generation, counts, winners, measurements, graphs, tuning}
    GET  /v2/jobs      {jobs, ignored, tuning}: see tuner.daemon.jobs.Job, tuner.daemon.background.Background.status
    GET  /v2/stats     {store, counts, jobs, stored}: its path, look-ups since the start, jobs by state, what the store holds
    POST /v2/miss      a program and its graphs (tuner.workload.miss_report.MissReport) -> {accepted, reason}
    POST /v2/yield     {pid} of a sweep, which is to go first -> {stopped}: whether a job had to stop for it

The last two belong to a daemon that tunes. Errors are {"error": one line}: 400 for a request that makes no sense, 409 for what
this daemon does not do, 413 for one that is too large, 503 for a store that cannot be read or written, 500 for a fault of ours.
To answer, the store is only read, so a sweep may write beside it; every request sees its current state.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tuner import __version__
from tuner.answer import ProgramAnswer
from tuner.daemon.background import Background
from tuner.daemon.jobs import Jobs, jobs_folder
from tuner.errors import SpecError, StoreError
from tuner.lookup.reader import StoreReader
from tuner.settings import PROTOCOL
from tuner.target import Query
from tuner.workload.miss_report import REPORT_LIMIT_BYTES, MissReport

log = logging.getLogger("tuner.daemon")
CAPABILITIES = ("lookup", "program", "status", "jobs", "stats")
TUNING_CAPABILITIES = ("miss", "yield")
# the largest query is some KB; nobody may fill our memory
REQUEST_LIMIT = 1024 * 1024
# what takes some ms to check is checked beside the event loop: look-ups go on meanwhile
LARGE_BYTES = 64 * 1024
# how long a request's body may take to arrive, and the store to be read
BODY_TIMEOUT_S = 5.0
STORE_TIMEOUT_S = 1.0

Endpoint = Callable[[Request], Awaitable[Any]]
Read = TypeVar("Read")


class BadRequest(Exception):
    """A request that makes no sense; `status` is what HTTP calls it."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def create_app(store_path: Path, background: Background | None = None) -> Starlette:
    """The application that serves the store at `store_path`, which need not exist yet; `background` tunes what is not in it."""
    started = time.monotonic()
    store = str(store_path.absolute())
    reader = StoreReader(store_path, STORE_TIMEOUT_S)
    errors: Counter[str] = Counter()

    async def hello(request: Request) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "capabilities": [*CAPABILITIES, *(TUNING_CAPABILITIES if background else ())],
            "store": store,
            "pid": os.getpid(),
        }

    async def lookup(request: Request) -> dict[str, Any]:
        return reader.answer(await _query(request)).to_json()

    async def program(request: Request) -> dict[str, Any]:
        query = await _query(request)
        if query.kind != "program":
            raise BadRequest(f"a query of kind program is asked for here, not {query.kind[:40]!r}")
        answer = reader.program(query)
        return replace(answer, wanted=background is not None and wants(background, query, answer)).to_json()

    def wants(active: Background, query: Query, answer: ProgramAnswer) -> bool:
        return not answer.settled and active.jobs.wants(query.exact_key, answer.known)

    async def miss(request: Request) -> dict[str, Any]:
        active = _active(background)
        report = await _read(request, "report", REPORT_LIMIT_BYTES, MissReport.from_json)
        if not wants(active, report.program, StoreReader(store_path, STORE_TIMEOUT_S).program(report.program)):
            return {"accepted": False, "reason": "it is settled, there is a job for it, or there are too many jobs"}
        active.jobs.add(report)
        active.wake()
        return {"accepted": True, "reason": ""}

    async def yield_(request: Request) -> dict[str, Any]:
        active = _active(background)
        pid = await _read(request, "request to yield", REQUEST_LIMIT, _checked_pid)
        return {"stopped": await active.yield_to(pid)}

    async def jobs(request: Request) -> dict[str, Any]:
        known = background.jobs if background else Jobs(jobs_folder(store_path))
        return {
            "jobs": [job.to_json() for job in known.all()],
            "ignored": known.ignored,
            "tuning": background.status() if background else None,
        }

    async def stats(request: Request) -> dict[str, Any]:
        known = background.jobs if background else Jobs(jobs_folder(store_path))
        stored = await asyncio.to_thread(StoreReader(store_path, STORE_TIMEOUT_S).stats)
        return {"store": store, "counts": counts(), "jobs": known.count(), "stored": stored}

    def counts() -> dict[str, Any]:
        return _outcomes(reader.outcomes) | {"errors": dict(errors)}

    async def status(request: Request) -> dict[str, Any]:
        stored = reader.counts()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - started, 3),
            "store": store,
            "generation": stored["generation"],
            "counts": counts(),
            "winners": stored["winners"],
            "measurements": stored["measurements"],
            "graphs": stored["graphs"],
            "tuning": background.status() if background else None,
        }

    def endpoint(handler: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(await handler(request))
            except BadRequest as error:
                errors["bad_request"] += 1
                return _error(error.status, str(error))
            except TimeoutError:
                errors["bad_request"] += 1
                return _error(408, "the request's body did not arrive in time")
            except ClientDisconnect:
                errors["bad_request"] += 1
                return _error(400, "the client went away")
            except StoreError as error:
                errors["store_error"] += 1
                log.warning("%s", error)
                return _error(503, str(error))
            except Exception as error:  # the border: a fault in one request is not the end of the daemon
                errors["fault"] += 1
                log.exception("fault in %s", request.url.path)
                return _error(500, f"{type(error).__name__} (see the daemon's log)")

        return respond

    prefix = f"/v{PROTOCOL}"
    return Starlette(
        routes=[
            Route(f"{prefix}/hello", endpoint(hello), methods=["GET"]),
            Route(f"{prefix}/lookup", endpoint(lookup), methods=["POST"]),
            Route(f"{prefix}/program", endpoint(program), methods=["POST"]),
            Route(f"{prefix}/status", endpoint(status), methods=["GET"]),
            Route(f"{prefix}/jobs", endpoint(jobs), methods=["GET"]),
            Route(f"{prefix}/stats", endpoint(stats), methods=["GET"]),
            Route(f"{prefix}/miss", endpoint(miss), methods=["POST"]),
            Route(f"{prefix}/yield", endpoint(yield_), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _outcomes(outcomes: Counter[str]) -> dict[str, Any]:
    """Look-ups by outcome: `hit`, `miss` by reason, and the same for programs."""
    known = ("hit", "program_hit", "program_miss")
    misses = {reason: count for reason, count in sorted(outcomes.items()) if reason not in known}
    return {name: outcomes[name] for name in known} | {"miss": misses}


def _active(background: Background | None) -> Background:
    if background is None:
        raise BadRequest("this daemon does not tune", 409)
    return background


async def _query(request: Request) -> Query:
    return await _read(request, "query", REQUEST_LIMIT, _checked_query)


async def _read(request: Request, what: str, limit: int, check: Callable[[Any], Read]) -> Read:
    """What `check` makes of the request's JSON. Raises BadRequest, as for what `check` raises on JSON of another form."""
    body = await _body(request, limit)

    def read() -> Read:
        return check(json.loads(body))

    try:
        return read() if len(body) < LARGE_BYTES else await asyncio.to_thread(read)
    except (ValueError, TypeError, RecursionError, SpecError) as error:
        raise BadRequest(f"not a {what}: {str(error)[:200]}") from error


def _checked_query(data: Any) -> Query:
    query = Query.from_json(_object(data))
    # the key hashes all fields: what JSON's canonical form cannot hold (NaN) shows here
    _ = query.exact_key
    return query


def _checked_pid(data: Any) -> int:
    pid = _object(data).get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise ValueError("it names no process by its id")
    return pid


async def _body(request: Request, limit: int) -> bytes:
    body = b""
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise BadRequest(f"a request of more than {limit} bytes", 413)
    return body


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error(status, f"{request.method} {request.url.path} is not part of protocol {PROTOCOL}")
