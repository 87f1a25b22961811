"""What a graph should compute: the same in float64, and eager's own error against that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from tuner.errors import one_line
from tuner.measure.correctness import Expected, deviation_of, excusing, expect
from tuner.workload.fx import memory_of, written_arguments

# What float64 stands for. Float8 is not in it: who converts to that quantises, and the rounding is part of the result.
WIDENED = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# Ops that say what the bits of their argument mean in another dtype: those of a wider copy mean something else.
BITCASTS = (torch.ops.aten.view.dtype, torch.ops.prims.view_of_dtype.default)
# Ops of Inductor's that eager draws anew, but compiled code computes from a seed: of a backward that may be an input.
FROM_SEEDS = ("prims.inductor_random.default", "prims.inductor_randint.default")


class Reference:
    """What the outcome of a graph on given inputs should be. An outcome: the outputs, then the mutated inputs, all copied.

    checkable: whether eager can say it. If not, `compare_with` has to be told an outcome to compare with, and only plans that
    leave the numerics alone are to be allowed. reason: why it is not, or why the tolerance is wider than it could be; else empty.
    """

    def __init__(self, expected: Sequence[Expected] | None, reason: str, seed: int):
        self._expected, self.reason, self.seed = expected, reason, seed
        self.checkable = expected is not None

    @staticmethod
    def of(
        module: fx.GraphModule,
        inputs: Sequence[Any],
        mutated: Sequence[int],
        seed: int,
        native: fx.GraphModule | None = None,
    ) -> Reference:
        """Runs `module`, a post-AOTAutograd graph, eagerly and in float64 on copies of what it writes.

        inputs: tensors, and numbers where sizes vary. mutated: positions of the inputs that it writes. native: the same graph
        with ops undecomposed, as eager runs a user's model: a library's kernel may be less exact than what it decomposes to, and
        is as good as eager all the same. seed: what `compare_with` is to be told an outcome of, see `seeded`. Raises what eager
        raises.
        """
        if (node := random_node(module)) is not None:
            return Reference(None, f"{node.target} draws random numbers", seed)
        run = _EagerRun(module)
        eager = _outcome(run.run, [_copy(x, wide=False) if i in mutated else x for i, x in enumerate(inputs)], mutated)
        wide = _WideRun(module, run.dtypes)
        try:
            exact = _outcome(wide.run, [_copy(x, wide=True) for x in inputs], mutated)
        except RuntimeError as error:
            return Reference([expect(a, a, flat=True) for a in eager], f"no float64 reference: {one_line(error)}", seed)
        reason = f"in their own precision also in the reference: {', '.join(wide.narrow)}" if wide.narrow else ""
        flat = bool(wide.narrow)
        largest = max((x.numel() for x in inputs if isinstance(x, Tensor)), default=0)
        expected = [expect(a, b, flat, largest) for a, b in zip(eager, exact, strict=True)]
        if native is not None:
            copies = [_copy(x, wide=False) if i in mutated else x for i, x in enumerate(inputs)]
            users = _outcome(fx.Interpreter(native).run, copies, mutated)
            expected = [excusing(one, expect(a, b, flat, largest)) for one, a, b in zip(expected, users, exact, strict=True)]
        return Reference(expected, reason, seed)

    def compare_with(self, outcome: Sequence[object]) -> None:
        """Makes `outcome` the reference: that of the compiled default, run directly after `seeded(self.seed)`.

        Candidates are to be run after the same. What leaves the numerics alone then agrees to a few units in the last place.
        """
        self._expected = [expect(value, value, flat=False) for value in outcome]

    def deviation(self, outcome: Sequence[object]) -> float:
        """Largest deviation of `outcome` in units of the tolerance: up to 1 it agrees. Infinite where it cannot."""
        if self._expected is None:
            raise ValueError(f"nothing to compare with: {self.reason}")
        if len(outcome) != len(self._expected):
            return math.inf
        return max((deviation_of(value, wanted) for value, wanted in zip(outcome, self._expected, strict=True)), default=0.0)


def seeded(seed: int) -> None:
    """Sets the generators of all devices that this process has opened: a compiled graph then draws the same numbers again."""
    torch.manual_seed(seed)


def random_node(module: fx.GraphModule) -> fx.Node | None:
    """The first node that draws random numbers. Torch tags attention as such; without dropout it draws none."""
    for node in module.graph.nodes:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload):
            continue
        if str(op) in FROM_SEEDS or (torch.Tag.nondeterministic_seeded in op.tags and _dropout(node) != 0):
            return node
    return None


def _dropout(node: fx.Node) -> object:
    """The value of the argument dropout_p, which attention has; None where there is none."""
    for i, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == "dropout_p":
            return node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
    return None


def same_layout(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in another dtype with the same strides, also where elements share memory."""
    return memory_of(tensor).to(dtype, copy=True).as_strided(tensor.shape, tensor.stride(), 0)


def _copy(value: Any, wide: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return same_layout(value, _wide_dtype(value.dtype) if wide else value.dtype)


def _outcome(run: Callable[..., Any], inputs: Sequence[Any], mutated: Iterable[int]) -> list[object]:
    outputs = run(*inputs)
    copied = [value.clone() if isinstance(value, Tensor) else value for value in outputs]
    return [*copied, *(inputs[i].clone() for i in mutated)]


def _dtypes(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.dtype, value)


class _EagerRun(fx.Interpreter):
    """Runs a graph as it is, and notes the dtypes of what its nodes yield."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.dtypes: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.dtypes[n] = _dtypes(value)
        return value


class _WideRun(fx.Interpreter):
    """Runs a graph with float64 in place of narrower floats. What cannot run so runs in its own precision: see `narrow`."""

    def __init__(self, module: fx.GraphModule, dtypes: dict[fx.Node, Any]):
        super().__init__(module)
        self.dtypes = dtypes
        self.narrow: list[str] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return _widened(super().run_node(n))
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.target not in BITCASTS:
            try:
                return _widened(n.target(*_wide_dtypes(args), **_wide_dtypes(kwargs)))  # type: ignore[operator]
            except (RuntimeError, TypeError, ValueError):
                pass
        if str(n.target) not in self.narrow:
            self.narrow.append(str(n.target))
        return self._in_own_precision(n)

    def _in_own_precision(self, node: fx.Node) -> Any:
        copies: dict[fx.Node, Any] = {}

        def narrowed(argument: fx.Node) -> Any:
            if argument not in copies:
                copies[argument] = _cast(self.env[argument], self.dtypes[argument])
            return copies[argument]

        args = fx.map_arg(node.args, narrowed)
        kwargs = fx.map_arg(node.kwargs, narrowed)
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        for argument in written_arguments(node):
            self.env[argument].copy_(copies[argument])
        return _widened(value)


def _cast(value: Any, dtypes: Any) -> Any:
    if isinstance(value, Tensor):
        return same_layout(value, dtypes)
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item, dtype in zip(value, dtypes, strict=True))
    return value


def _wide_dtypes(arguments: Any) -> Any:
    return tree_map_only(torch.dtype, lambda dtype: WIDENED.get(dtype, dtype), arguments)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else WIDENED.get(dtype, dtype)


def _widened(value: Any) -> Any:
    """Tensors among `value` in float64, float8 included: its rounding is done by now."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(_wide_dtype(tensor.dtype)), value)
