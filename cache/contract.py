"""What a store promises, whatever is behind it. tests/cache/test_conformance.py holds every back end to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from tuner.answer import Bucket, ProgramChoice
from tuner.measurement import GroupTime, Measurement, Policy, ProgramFinal, Stage, Winner
from tuner.target import Query

# of one group under one target, toolchain, ambient and policy
GROUP_TIMES_KEPT = 16


@dataclass(frozen=True)
class ProgramGraph:
    """One graph of a program: `position` counts from 0 in the order in which the program's graphs are compiled."""

    program_key: str
    exact_key: str
    position: int
    graph_key: str
    graph_exact_key: str
    spec: str


@dataclass(frozen=True)
class StoredProgram:
    """A program under one target, toolchain and ambient, with the queries of its graphs, in order."""

    query: Query
    graphs: tuple[Query, ...]
    spec: str


class Store(Protocol):
    """Every measurement and every winner, kept.

    Who may write: whoever holds the store's lock, from opening it for writing until `close`: a sweep, or the tuning process of a
    daemon, one at a time. A second one is refused with StoreBusy; a sweep asks the daemon to yield. The daemon itself only reads,
    and so may any number of processes. A store object belongs to the thread that made it.

    Durable: when a method returns, what it wrote survives the death of the process (SIGKILL included); after a loss of power the
    last few writes may be gone, never half of one.

    Order: measurements and times of groups come back in the order in which they were added. Winners, finals of programs and
    choices for them are append-only. Of times of groups the newest GROUP_TIMES_KEPT of each are kept: they only guide the search.

    Generation: one counter for the whole store, which never goes back. It counts what changes answers: every winner, every
    choice for a program, every veto of a program's plans that comes or goes, and every verdict that takes a winner out of service
    or brings it back.

    Quarantine: a candidate that was `wrong`, `crash` or `timeout`, in whatever stage, under whatever policy and ambient settings,
    is in quarantine for its workload, target and toolchain, until a later measurement of the stage "screen" is `ok` (a retry on
    request). Readers serve no winner whose candidate is in quarantine.

    Plans: what the search space does not declare is refused on write with PlanError. A row that does not validate when it is read
    is treated as absent, logged and counted in `invalid_rows`.

    Values come back as they were stored, but for fields of a query that are None or empty, which mean the same as absent.

    Errors: StoreError from every method, for what the back end reports (disk full, corruption, read-only) and for values that
    JSON cannot hold. A method that raised has written nothing.
    """

    invalid_rows: int

    def add_graph(self, workload_key: str, form: dict[str, Any], anew: bool = False) -> None:
        """Keep the JSON form of a graph. One that is there already is left as it is; `anew`: is replaced. Raises StoreError."""
        ...

    def graph(self, workload_key: str) -> dict[str, Any] | None:
        """The form that `add_graph` kept. Raises StoreError."""
        ...

    def find_graphs(self, prefix: str) -> list[str]:
        """Keys of stored graphs that start with `prefix`, sorted. Raises StoreError."""
        ...

    def add_program(self, query: Query, graphs: Sequence[Query], spec: str) -> None:
        """Record which graphs a program gives, in order; replaces what was recorded for the same exact match.

        query: of kind "program"; graphs: of kind "graph"; spec: as the user typed it. Raises StoreError; ValueError on other
        kinds.
        """
        ...

    def programs_of(self, graph_key: str) -> list[ProgramGraph]:
        """Where a graph occurs, oldest record first. Raises StoreError."""
        ...

    def find_programs(self, prefix: str) -> list[StoredProgram]:
        """What is recorded of programs whose key starts with `prefix`, oldest record first. Raises StoreError."""
        ...

    def add_measurement(self, measurement: Measurement) -> int:
        """Keep one trial; returns its number. Raises PlanError, StoreError."""
        ...

    def measurements(self, exact_key: str, stage: Stage | None = None, policy_key: str | None = None) -> list[Measurement]:
        """The trials of an exact match, oldest first, of one stage and one policy where given. Raises StoreError."""
        ...

    def quarantined(self, query: Query) -> dict[str, Measurement]:
        """Candidate key -> the latest verdict that keeps it in quarantine, for the query's workload, target and toolchain.

        Raises StoreError.
        """
        ...

    def quarantine(self) -> list[Measurement]:
        """The latest verdict on every candidate in quarantine in the whole store, oldest first. Raises StoreError."""
        ...

    def exact_keys(self, workload_key: str) -> list[str]:
        """The exact matches of a workload that have measurements or a winner, oldest first. Raises StoreError."""
        ...

    def record_winner(self, winner: Winner) -> int:
        """Keep a winner under the next generation, which is returned. Raises PlanError, StoreError.

        Raises ValueError where the kind does not fit the plan: "default" goes with the default plan, "plan" with any other.
        """
        ...

    def winner(self, exact_key: str) -> tuple[Winner, int] | None:
        """The latest winner of an exact match and its generation. Raises StoreError."""
        ...

    def winners(self) -> list[tuple[Winner, int]]:
        """The latest winner of every exact match with its generation, by generation. Raises StoreError."""
        ...

    def record_program_final(self, final: ProgramFinal) -> int:
        """Keep what the whole callable's final said; returns the store's generation, a new one where a veto comes or goes.

        Raises StoreError; ValueError where its query is not of kind "program".
        """
        ...

    def program_final(self, exact_key: str, plans: str | None = None) -> tuple[ProgramFinal, int] | None:
        """The latest final of a program, of these very plans where given, and the generation it was recorded in.

        Only the latest final of the plans in force says whether they are vetoed. Raises StoreError.
        """
        ...

    def record_program_choice(
        self,
        query: Query,
        native_table: Sequence[str] = (),
        dispatch: Sequence[Bucket] = (),
        evidence: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> int:
        """Keep what is chosen for a program as a whole under the next generation, which is returned; see `ProgramAnswer`.

        It replaces what was chosen before, nothing included. A final's veto is of these plans and this choice, together: with
        `tuner.answer.digest_of_plans`. Raises PlanError, StoreError; ValueError where the query is not of kind "program" or the
        buckets are not in order.
        """
        ...

    def program_choice(self, exact_key: str) -> tuple[ProgramChoice, int] | None:
        """The latest choice for a program and its generation. Raises StoreError."""
        ...

    def choice_evidence(self, exact_key: str) -> Mapping[str, Any] | None:
        """What the latest choice for a program rests on; None where there is none that validates. Raises StoreError."""
        ...

    def add_group_times(self, query: Query, policy: Policy, times: Sequence[GroupTime]) -> None:
        """Keep how long groups of leaves of the query's graph ran; changes no answer.

        Raises StoreError; ValueError on a time that is no finite number of at least 0, or an empty key.
        """
        ...

    def group_times(self, query: Query, policy: Policy, keys: Iterable[str]) -> list[GroupTime]:
        """What is known of these groups in any graph under the same target, toolchain, ambient and policy, oldest first.

        Raises StoreError.
        """
        ...

    def generation(self) -> int:
        """How often answers have changed; 0 for a new store. Raises StoreError."""
        ...

    def counts(self) -> dict[str, int]:
        """Number of `graphs`, `programs`, `measurements` and exact matches with `winners`; `generation`. Raises StoreError."""
        ...

    def close(self) -> None:
        """Release the store and its lock; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
