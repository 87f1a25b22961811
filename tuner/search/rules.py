"""How to search, beside how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tuner.plan import Groups
from tuner.search_spaces.space import Candidate, candidates

# Of the inputs; each process of a sweep has its own, from here on.
SEED = 20260
# More processes than this want more memory than they save time.
MAX_JOBS = 16


@dataclass(frozen=True)
class Rules:
    """How to search, beside how much.

    retry: try also what is in quarantine. dispatch: choose a plan for each size of a dim. jobs: processes that compile ahead, if
    more than one; None: one for each core. own_copies: see Bench. space: the candidates of a graph, given the default's groups
    and its ops that may stay native, each as often as it occurs.
    """

    retry: bool = False
    dispatch: bool = False
    jobs: int | None = None
    own_copies: bool = False
    space: Callable[[Groups, Iterable[str]], Iterable[Candidate]] = candidates
