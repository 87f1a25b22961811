"""What other sweeps taught, as first candidates: to be measured here, never to be served unmeasured."""

from __future__ import annotations

from tuner.cache.contract import Store
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import Candidate
from tuner.target import Query

# More winners of other settings than this tell nothing new.
MAX_SEEDS = 6


def seeds(store: Store, resolved: Resolved) -> list[Candidate]:
    """Winners of the same graph elsewhere: under other settings, another toolchain, another thread count, on another target.

    Those of the same target come first, the latest of them before older ones; each plan once, MAX_SEEDS at most. What near shapes
    and other graphs teach comes through this function as well, once there is a measure of nearness. Raises StoreError.
    """
    here = resolved.query
    found: list[tuple[tuple[bool, bool, int], Candidate]] = []
    for key in store.exact_keys(here.workload_key):
        if key == here.exact_key or (won := store.winner(key)) is None:
            continue
        winner, generation = won
        if winner.kind == "plan":
            order = (winner.query.target != here.target, winner.query.toolchain != here.toolchain, -generation)
            found.append((order, Candidate(f"seed: {_difference(winner.query, here)}", winner.plan)))
    chosen: dict[str, Candidate] = {}
    for _, candidate in sorted(found, key=lambda one: one[0]):
        chosen.setdefault(candidate.plan.key, candidate)
    return list(chosen.values())[:MAX_SEEDS]


def _difference(there: Query, here: Query) -> str:
    """In what the place where a plan won differs, in a word."""
    parts = {"target": (there.target, here.target), "toolchain": (there.toolchain, here.toolchain)}
    parts["ambient"] = (there.ambient, here.ambient)
    return ", ".join(f"other {name}" for name, (one, other) in parts.items() if one != other) or "other settings"
