"""How to search, beside how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.plan import Groups, Plan
from tuner.search.workloads import Resolved
from tuner.search_spaces.inductor_knobs import changes_numerics, knobs_for
from tuner.search_spaces.parameters import Parameter
from tuner.search_spaces.space import Candidate

# Of the inputs; each process of a sweep has its own, from here on.
SEED = 20260
# More processes than this want more memory than they save time.
MAX_JOBS = 16
# In the evidence of a search that was allowed knobs which change how values are computed.
NUMERICS_ALLOWED = "numerics_allowed"


@dataclass(frozen=True)
class Rules:
    """How to search, beside how much.

    retry: try also what is in quarantine. dispatch: choose a plan for each size of a dim. jobs: processes that compile ahead, if
    more than one; None: one for each core. own_copies: see Bench. numerics: let knobs change how values are computed.
    keeps_numerics: take a winner with such knobs for settled, since somebody allowed it. space: the candidates of a graph instead
    of a search, given the default's groups and its ops that may stay native, each as often as it occurs.
    """

    retry: bool = False
    dispatch: bool = False
    jobs: int | None = None
    own_copies: bool = False
    numerics: bool = False
    keeps_numerics: bool = False
    space: Callable[[Groups, Iterable[str]], Iterable[Candidate]] | None = None

    def allows(self, plan: Plan) -> bool:
        """Whether a plan may be proposed, wherever it comes from."""
        return self.numerics or not changes_numerics(plan)

    def settled_by(self, evidence: Mapping[str, Any], plans: Iterable[Plan]) -> bool:
        """Whether these rules give no more to choose from than a search with this evidence had, and allow the plans it chose.

        Where the user allowed what he does not allow now, he is served it until he sweeps again.
        """
        if self.numerics:
            return bool(evidence.get(NUMERICS_ALLOWED))
        return self.keeps_numerics or all(self.allows(plan) for plan in plans)

    def knobs(self, resolved: Resolved) -> dict[str, Parameter]:
        """The knobs that may change what is compiled for a graph, in order of promise; those that the user has set among them."""
        query = resolved.query
        threads = int(query.ambient.get("threads", 1))
        return knobs_for(str(query.target["backend"]), threads, resolved.graph.calls, self.numerics)
