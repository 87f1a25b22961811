"""One graph in the measuring process: the default and the candidates that were compiled, checked and timed beside it.

Runs in the child only. Every function answers with JSON values.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor.apply import Realised, compile_candidate
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.compilers.inductor.hooks import inductor_config
from tuner.errors import DuplicateCode, PlanNotRealised, UnsupportedGraph, one_line
from tuner.measure.correctness import deviation
from tuner.measure.memory import call_growth_bytes, resident_bytes
from tuner.measure.timing import interleaved, repetitions_for, time_calls
from tuner.plan import Groups, Plan, canonical_groups
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph

DEFAULT_KEY = Plan().key
# Words in the names of the ops that torch tags as drawing random numbers, but for attention, which draws none without dropout.
RANDOM_OPS = (
    *("rand", "dropout", "bernoulli", "multinomial", "normal", "seed", "uniform", "exponential", "cauchy", "geometric"),
    *("poisson", "binomial", "standard_gamma", "dirichlet", "rrelu"),
)
WARM_UP_CALLS = 5
# How far, in units of the tolerance, the default may stray from eager.
MAX_DEFAULT_ERROR = 10.0
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc")


@dataclass
class Entry:
    """A compiled candidate. run: one call on the session's inputs.

    peak_bytes: on the CPU, of a process that has loaded torch, holds the inputs, and makes this call: what its user sees of it.
    """

    run: Callable[[], Any]
    realised: Realised
    error: float
    peak_bytes: int


class Session:
    """Compiles, checks and times candidates of one graph on one set of inputs. Raises UnsupportedGraph where it cannot."""

    def __init__(self, graph: Graph, seed: int, clock: str):
        for name in graph.calls:
            if any(word in name.split(".")[1] for word in RANDOM_OPS):
                raise UnsupportedGraph("random", f"{name} draws random numbers: outputs cannot be compared with eager")
        self.graph, self.clock = graph, clock
        resident_bytes()  # first asked here, before anything is compiled
        self.inputs = make_inputs(graph, seed)
        self.input_bytes = sum(value.untyped_storage().nbytes() for value in self.inputs)
        self.originals = {i: self.inputs[i].clone() for i in graph.mutated}
        self.entries: dict[str, Entry] = {}
        self.reference = self._outcome(fx.Interpreter(self._module(Plan())).run)
        self.entries[DEFAULT_KEY] = entry = self._compile(Plan(), None, ())
        entry.error = deviation(self._outcome_of(entry), self.reference)
        if entry.error > MAX_DEFAULT_ERROR:
            raise UnsupportedGraph("unchecked", "the compiler's default itself differs from eager: nothing can be checked")
        # The default is what users get without us: where it strays from eager itself, candidates may stray twice as far.
        self.allowed_error = max(1.0, 2 * entry.error)
        entry.peak_bytes = self._peak(entry)
        self.default_ms = self._rough_ms(entry)
        self.repetitions = repetitions_for(self.default_ms)

    def _module(self, plan: Plan) -> fx.GraphModule:
        if not plan.native or self.graph.native_form is None:
            return to_fx(self.graph)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(value) for value in self.inputs]
        return late_decompose(to_fx(self.graph.native_form), plan.native, fakes)

    def _compile(self, plan: Plan, expected: Groups | None, seen_codes: tuple[str, ...]) -> Entry:
        compiled, realised = compile_candidate(
            self._module(plan),
            self.inputs,
            plan,
            expected=expected,
            seen_codes=seen_codes,
            static_input_idxs=self.graph.static_inputs,
            is_inference=True,
            cpp_wrapper=inductor_config.cpp_wrapper,
            graph_id=0,
            get_decomp_fn=TableWithout(plan.native),
        )
        return Entry(lambda: compiled(list(self.inputs)), realised, float("inf"), 0)

    def restore(self) -> None:
        for i, original in self.originals.items():
            self.inputs[i].copy_(original)

    def _outcome(self, function: Callable[..., Any]) -> list[Any]:
        """Outputs and mutated inputs of one run on fresh state, copied."""
        self.restore()
        outputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in function(*self.inputs)]
        outcome = outputs + [self.inputs[i].clone() for i in self.graph.mutated]
        self.restore()
        return outcome

    def _outcome_of(self, entry: Entry) -> list[Any]:
        return self._outcome(lambda *_: entry.run())

    def _peak(self, entry: Entry) -> int:
        growth = call_growth_bytes(entry.run)
        self.restore()
        return resident_bytes() + self.input_bytes + growth

    def _rough_ms(self, entry: Entry) -> float:
        restore = self.restore if self.originals else None
        time_calls(entry.run, WARM_UP_CALLS, self.clock, restore)
        return min(time_calls(entry.run, 1, self.clock, restore) for _ in range(WARM_UP_CALLS))

    def describe_default(self) -> dict[str, Any]:
        return {**self._describe(self.entries[DEFAULT_KEY]), "default_ms": self.default_ms, "repetitions": self.repetitions}

    def _describe(self, entry: Entry) -> dict[str, Any]:
        groups = entry.realised.groups
        return {
            "status": "ok",
            "realised": None if groups is None else [list(group) for group in groups],
            "code_key": entry.realised.code_key,
            "error": entry.error if entry.error != float("inf") else None,
            "peak_bytes": entry.peak_bytes,
        }

    def try_plan(self, plan: Plan, expected: Any, seen_codes: list[str]) -> dict[str, Any]:
        """Compiles and checks `plan`.

        status: "ok", "wrong", "compile_error", "duplicate" (its code is in `seen_codes`), "not_realised" (other groups than the
        `expected` ones came out: see realised); the last two come before the C++ compiler runs.
        """
        groups = None if expected is None else canonical_groups(expected)
        try:
            entry = self._compile(plan, groups, tuple(seen_codes))
            entry.error = deviation(self._outcome_of(entry), self.reference)
        except DuplicateCode as error:
            return {"status": "duplicate", "code_key": error.code_key}
        except PlanNotRealised as error:
            return {"status": "not_realised", "message": str(error), "realised": [list(group) for group in error.groups]}
        # A border of the worker loop: the verdict goes to the store, the traceback to the worker's log.
        except Exception as error:
            traceback.print_exc()
            starved = isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
            return {"status": "out_of_resources" if starved else "compile_error", "message": one_line(error)}
        verdict = self._describe(entry)
        if not entry.error <= self.allowed_error:
            return {**verdict, "status": "wrong", "message": f"differs from eager by {entry.error:.3g} times the tolerance"}
        entry.peak_bytes = self._peak(entry)
        self.entries[plan.key] = entry
        return {**verdict, "peak_bytes": entry.peak_bytes}

    def time_plans(self, keys: list[str], samples: int, seed: int) -> dict[str, list[float]]:
        """Interleaved samples, milliseconds per call, of the default and the plans with these keys."""
        chosen = [DEFAULT_KEY, *keys]
        with torch.compiler.set_stance("fail_on_recompile"):
            times = interleaved(
                [self.entries[key].run for key in chosen],
                samples,
                self.repetitions,
                self.clock,
                self.restore if self.originals else None,
                seed,
            )
        return dict(zip(chosen, times, strict=True))
