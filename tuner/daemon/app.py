"""The service's HTTP interface: which winners does a store hold? JSON over HTTP; version and capabilities are in the greeting.

    GET  /v1/hello     {protocol, version, capabilities, store, pid}
    POST /v1/lookup    a query (tuner.target.Query) -> an answer (tuner.answer.Answer)
    POST /v1/program   a query of kind "program" -> a program answer (tuner.answer.ProgramAnswer)
    GET  /v1/status    {pid, uptime_s, store, generation, counts, winners, measurements, graphs}

Errors are {"error": one line}: 400 for a request that makes no sense, 413 for one that is too large, 503 for a store that cannot
be read, 500 for a fault of ours. The store is only read, so a sweep may write beside it; every request sees its current state.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tuner import __version__
from tuner.errors import StoreError
from tuner.lookup.reader import StoreReader
from tuner.settings import PROTOCOL
from tuner.target import Query

log = logging.getLogger("tuner.daemon")
CAPABILITIES = ("lookup", "program", "status")
# the largest query is some KB; nobody may fill our memory
REQUEST_LIMIT = 1024 * 1024
# how long a request's body may take to arrive, and the store to be read
BODY_TIMEOUT_S = 5.0
STORE_TIMEOUT_S = 1.0

Endpoint = Callable[[Request], Awaitable[Any]]


class BadRequest(Exception):
    """A request that makes no sense; `status` is what HTTP calls it."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def create_app(store_path: Path) -> Starlette:
    """The application that serves the store at `store_path`, which need not exist yet."""
    started = time.monotonic()
    store = str(store_path.absolute())
    reader = StoreReader(store_path, STORE_TIMEOUT_S)
    errors: Counter[str] = Counter()

    async def hello(request: Request) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "capabilities": list(CAPABILITIES),
            "store": store,
            "pid": os.getpid(),
        }

    async def lookup(request: Request) -> dict[str, Any]:
        return reader.answer(await _query(request)).to_json()

    async def program(request: Request) -> dict[str, Any]:
        query = await _query(request)
        if query.kind != "program":
            raise BadRequest(f"a query of kind program is asked for here, not {query.kind[:40]!r}")
        return reader.program(query).to_json()

    async def status(request: Request) -> dict[str, Any]:
        stored = reader.counts()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - started, 3),
            "store": store,
            "generation": stored["generation"],
            "counts": _outcomes(reader.outcomes) | {"errors": dict(errors)},
            "winners": stored["winners"],
            "measurements": stored["measurements"],
            "graphs": stored["graphs"],
        }

    def endpoint(handler: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(await handler(request))
            except BadRequest as error:
                errors["bad_request"] += 1
                return _error(error.status, str(error))
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
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _outcomes(outcomes: Counter[str]) -> dict[str, Any]:
    """Look-ups by outcome: `hit`, `miss` by reason, and the same for programs."""
    known = ("hit", "program_hit", "program_miss")
    misses = {reason: count for reason, count in sorted(outcomes.items()) if reason not in known}
    return {name: outcomes[name] for name in known} | {"miss": misses}


async def _query(request: Request) -> Query:
    try:
        body = await asyncio.wait_for(_body(request), BODY_TIMEOUT_S)
        query = Query.from_json(_object(json.loads(body)))
        # the key hashes all fields: what JSON's canonical form cannot hold (NaN) shows here
        _ = query.exact_key
        return query
    except TimeoutError:
        raise BadRequest("the request's body did not arrive in time", 408) from None
    except ClientDisconnect:
        raise BadRequest("the client went away") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"not a query: {str(error)[:200]}") from error


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > REQUEST_LIMIT:
            raise BadRequest(f"a request of more than {REQUEST_LIMIT} bytes", 413)
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
