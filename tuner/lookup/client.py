"""The door to the answers: what a compiling process asks. It never raises, and never holds a compile up beyond its deadline."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from tuner.answer import Answer, ProgramAnswer, ProgramChoice
from tuner.errors import PlanError, StoreError
from tuner.lookup.reader import StoreReader
from tuner.lookup.unix_http import request, socket_trouble
from tuner.lookup.validate import validated, validated_choice
from tuner.plan import Plan
from tuner.settings import PROTOCOL, Settings
from tuner.target import Query
from tuner.workload.miss_report import REPORT_LIMIT_BYTES, MissReport

log = logging.getLogger("tuner")
Source = Literal["daemon", "store", "none"]
Reply = TypeVar("Reply", Answer, ProgramAnswer)
# Seconds that a daemon may take to check and keep a report.
REPORT_TIMEOUT_S = 1.0


_warned = threading.Event()


def warn_once(message: str, *values: object) -> None:
    """Logs the first trouble of a process as a warning, the others for those who look closer."""
    log.log(logging.DEBUG if _warned.is_set() else logging.WARNING, "tuner: " + message, *values)
    _warned.set()


class Door(Protocol):
    """What a program's compile asks: a client, or something before one. Each as in `Client`."""

    @property
    def source(self) -> Source: ...

    @property
    def settings(self) -> Settings: ...

    def lookup(self, query: Query) -> Answer: ...

    def program(self, query: Query) -> ProgramAnswer: ...

    def report(self, report: MissReport) -> str: ...


class Client:
    """Look-ups for one process; make one and keep it. May be used from several threads.

    The daemon is asked where its socket exists, with half of the time that is left; when that fails once, this process reads the
    store itself from then on. When `settings.deadline_ms` is used up, all look-ups together, every answer is the default at once.

    counts: how look-ups ended, one of "hit", "miss" (an answer of tier default), "program_hit", "program_miss" for each; and what
    happened on the way: "disabled", "deadline", "daemon_error", "socket_ignored", "store_error", "invalid_plan", "report_error".
    source: where the last answer came from. warnings: what went wrong, the first of each kind.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.source: Source = "none"
        self.warnings: dict[str, str] = {}
        self.spent_s = 0.0
        self._ask_daemon = self._may_report = True
        self._lock = threading.Lock()

    def lookup(self, query: Query) -> Answer:
        """The plan for one graph, the default where nothing better is known or anything fails. Never raises."""
        answer = self._ask(
            lambda timeout_s: validated(Answer.from_json(self._daemon("lookup", query, timeout_s))),
            lambda reader: reader.answer(query),
            lambda reason: Answer(Plan(), "default", 0, reason),
        )
        self._count("hit" if answer.tier != "default" else "miss")
        return answer

    def program(self, query: Query) -> ProgramAnswer:
        """What is known of a program; unknown, at generation 0, where anything fails. Never raises."""
        answer = self._ask(
            lambda timeout_s: _validated_program(ProgramAnswer.from_json(self._daemon("program", query, timeout_s))),
            lambda reader: reader.program(query),
            lambda reason: ProgramAnswer(False, 0, reason=reason),
        )
        self._count("program_hit" if answer.known else "program_miss")
        return answer

    def report(self, report: MissReport) -> str:
        """Gives the daemon a program that it wants; why it did not take it, "" where it did. Never raises.

        After a failure, nothing more is reported in this process.
        """
        if not self._may_report:
            return "report error before"
        # The border: the program is compiled, whatever a daemon does.
        try:
            if socket_trouble(self.settings.socket) is not None:
                return "no daemon"
            text = json.dumps(report.to_json()).encode()
            if len(text) > REPORT_LIMIT_BYTES:
                return "too large"
            answer = request(self.settings.socket, "POST", f"/v{PROTOCOL}/miss", text, REPORT_TIMEOUT_S)
            return "" if answer["accepted"] is True else "not wanted any more"
        except Exception as error:
            self._may_report = False
            self._trouble("report_error", f"cannot report a program to the daemon ({_line(error)})")
            return "report error"

    def _ask(
        self,
        from_daemon: Callable[[float], Reply],
        from_store: Callable[[StoreReader], Reply],
        default: Callable[[str], Reply],
    ) -> Reply:
        self.source = "none"
        if self.settings.disabled:
            self._count("disabled")
            return default("disabled by TUNER_DISABLE")
        started = time.monotonic()
        end = started + self.settings.deadline_ms / 1000 - self.spent_s
        try:
            if end <= started:
                reason = f"the deadline of {self.settings.deadline_ms:g} ms per process is used up"
                self._trouble("deadline", f"{reason}; compiling by default from here on")
                return default(reason)
            answer = self._try_daemon(from_daemon, (end - started) / 2)
            return answer if answer is not None else self._try_store(from_store, default, end - time.monotonic())
        finally:
            with self._lock:
                self.spent_s += time.monotonic() - started

    def _try_daemon(self, from_daemon: Callable[[float], Reply], timeout_s: float) -> Reply | None:
        if not self._ask_daemon:
            return None
        try:
            trouble = socket_trouble(self.settings.socket)
            if trouble is not None:
                if trouble:
                    self._ask_daemon = False
                    self._trouble("socket_ignored", f"{trouble}; reading the store directly")
                return None
            answer = from_daemon(timeout_s)
            self.source = "daemon"
            return answer
        except PlanError as error:
            self._ask_daemon = False
            self._trouble("invalid_plan", f"the daemon answered with a plan that does not validate: {error}")
        except Exception as error:  # the border: whatever a daemon does, the compile goes on
            self._ask_daemon = False
            self._trouble("daemon_error", f"no answer from the daemon ({_line(error)}); reading the store directly")
        return None

    def _try_store(self, from_store: Callable[[StoreReader], Reply], default: Callable[[str], Reply], timeout_s: float) -> Reply:
        try:
            reader = StoreReader(self.settings.store, timeout_s=max(timeout_s, 0.001))
            answer = from_store(reader)
            self.source = "store"
            if reader.outcomes["invalid_plan"] or reader.outcomes["invalid_choice"]:
                self._trouble("invalid_plan", f"store {self.settings.store} holds a plan that does not validate")
            return answer
        except StoreError as error:
            self._trouble("store_error", f"{error}; compiling by default")
            return default(str(error))
        except Exception as error:  # the border: whatever a store holds, the compile goes on
            self._trouble("store_error", f"cannot look up in {self.settings.store} ({_line(error)}); compiling by default")
            return default(_line(error))

    def _daemon(self, name: str, query: Query, timeout_s: float) -> dict[str, object]:
        value = request(self.settings.socket, "POST", f"/v{PROTOCOL}/{name}", query.to_json(), timeout_s)
        if not isinstance(value, dict):
            raise ValueError("the answer is no JSON object")
        return value

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.counts[outcome] += 1

    def _trouble(self, outcome: str, message: str) -> None:
        self._count(outcome)
        with self._lock:
            self.warnings.setdefault(outcome, message)
        warn_once("%s", message)


def _validated_program(answer: ProgramAnswer) -> ProgramAnswer:
    for graph in answer.answers.values():
        validated(graph)
    validated_choice(ProgramChoice(answer.native_table, answer.dispatch))
    return answer


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
