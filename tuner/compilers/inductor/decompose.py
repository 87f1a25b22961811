"""Which ops are decomposed: a table without the ops that may stay native, and decomposing a graph late."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tuner.compilers.inductor.hooks import (
    V,
    get_layout_constraint_tag,
    joint_graph_passes,
    lowerings,
    make_fallback,
    select_decomp_table,
    tag_to_layout_constraint,
)
from tuner.errors import PlanRefused
from tuner.plan import kind_of
from tuner.search_spaces.native import NATIVE_OPS
from tuner.workload.fx import canonical_order, op_from_name

Table = dict[Any, Callable[..., Any]]


def table_without(ops: Iterable[str]) -> Table:
    """Inductor's decomposition table but for `ops`, named as in a plan's `native`; one occurrence stands for its kind."""
    kept = frozenset(map(kind_of, ops))
    return {op: decomposition for op, decomposition in select_decomp_table().items() if str(op) not in kept}


@dataclass(frozen=True)
class TableWithout:
    """`table_without(ops)` as a value: Inductor pickles what it is given as get_decomp_fn into its cache key."""

    ops: tuple[str, ...]

    def __call__(self) -> Table:
        return table_without(self.ops)


def native_table() -> Table:
    """The table that leaves every op undecomposed that a plan may keep native."""
    return table_without(NATIVE_OPS)


def register_native(ops: Iterable[str]) -> None:
    """Makes Inductor lower `ops` to library calls where they reach it undecomposed, as it does for all that it does not know.

    By itself it refuses where the environment variable CI is set, since there it wants decompositions used that exist.
    """
    for name in sorted(set(map(kind_of, ops))):
        op = op_from_name(name)
        if op not in lowerings:
            constraint = tag_to_layout_constraint(get_layout_constraint_tag(op, with_default=True))
            make_fallback(op, layout_constraint=constraint, warn=False, get_decomp_fn=TableWithout((name,)))


class _Decomposer(fx.Interpreter):
    """Runs a graph for a trace under `table`, which leaves alone what is to be kept, be it only some occurrences of a kind."""

    def __init__(self, gm: fx.GraphModule, keep: Sequence[str]):
        super().__init__(gm)
        kinds, single = [name for name in keep if kind_of(name) == name], {name for name in keep if kind_of(name) != name}
        self.kept = occurrences(gm.graph, single)
        self.table = table_without(kinds)
        for op in {node.target for node in self.kept}:
            self.table[op] = self._unless_kept(self.table[op])
        self.running: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.running = n
        return super().run_node(n)

    def _unless_kept(self, decomposition: Callable[..., Any]) -> Callable[..., Any]:
        def decompose(*args: Any, **kwargs: Any) -> Any:
            return NotImplemented if self.running in self.kept else decomposition(*args, **kwargs)

        return decompose


def occurrences(graph: fx.Graph, names: Collection[str]) -> set[fx.Node]:
    """The nodes that `names` name, as "aten.gelu.default#2". Raises PlanRefused for one that is not there."""
    found: dict[str, fx.Node] = {}
    seen: Counter[str] = Counter()
    for node in canonical_order(graph) if names else ():
        if node.op == "call_function":
            found[f"{node.target}#{seen[str(node.target)]}"] = node
            seen[str(node.target)] += 1
    if missing := sorted(set(names) - set(found)):
        raise PlanRefused(f"the graph has no {missing[0]}")
    return {found[name] for name in names}


def late_decompose(gm: fx.GraphModule, keep: Iterable[str], inputs: Iterable[Any] | None = None) -> fx.GraphModule:
    """`gm`, traced with `native_table`, decomposed but for the ops in `keep`.

    With nothing kept this is the inference graph that the default makes, but where a pass behaves otherwise the second time:
    capture compares their keys. keep: as in a plan's `native`; raises PlanRefused for an occurrence that `gm` lacks. inputs: fake
    tensors; by default the metadata of the placeholders. The output node's metadata is carried over.
    """
    keep = tuple(keep)
    register_native(keep)
    decomposer = _Decomposer(gm, keep)
    values = list(inputs) if inputs is not None else [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    fake_mode = torch._guards.detect_fake_mode(values)
    with fake_mode or contextlib.nullcontext():
        made = make_fx(lambda *args: decomposer.run(*args), decomposition_table=decomposer.table)(*values)
        made.graph.eliminate_dead_code()
        # The default runs these passes on decomposed graphs: here they get to see what was not decomposed before.
        with V.set_fake_mode(fake_mode):
            made = joint_graph_passes(made, input_device=torch.device("cpu"))
    (old,), (new,) = gm.graph.find_nodes(op="output"), made.graph.find_nodes(op="output")
    new.meta.update({name: value for name, value in old.meta.items() if name != "val"})
    if not isinstance(new.args[0], list | tuple):
        new.args = ((new.args[0],),)
    made.recompile()
    return made
