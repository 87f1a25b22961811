"""Callables whose graphs are hard to name, to rebuild or to serve; each with what to call it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A callable and the inputs of its calls, one after another. training: `.backward()` follows each call.

    inductor, dynamo: settings of torch's for the compilation; options: of torch.compile.
    """

    function: Callable[..., Any]
    calls: tuple[Inputs, ...]
    training: bool = False
    inductor: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def numbers(*shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def once(function: Callable[..., Any], *inputs: Any, **more: Any) -> Case:
    return Case(function, (inputs,), **more)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def small_net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)))


# ---- weights and modules


def frozen_weights() -> Case:
    net = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)))
    return once(net.eval(), numbers(2, 3, 8, 8), inductor={"freezing": True})


def batch_norm_that_learns() -> Case:
    return once(
        seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())), numbers(2, 3, 6, 6), training=True
    )


def lstm() -> Case:
    net = seeded(lambda: nn.LSTM(8, 8, batch_first=True))
    return once(lambda x: net(x)[0], numbers(2, 5, 8), dynamo={"allow_rnn": True})


def parametrised_weight() -> Case:
    net = seeded(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    return once(net, numbers(2, 8), training=True)


def tied_weights() -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embedding(ids)))

    return once(seeded(Tied), torch.tensor([[1, 2, 3], [4, 5, 6]]), training=True)


def quantised_by_module() -> Case:
    net = torch.ao.quantization.quantize_dynamic(small_net().eval(), {nn.Linear}, dtype=torch.qint8)
    return once(net, numbers(2, 8))


def int8_weights() -> Case:
    weight = (numbers(16, 8, seed=3) * 20).to(torch.int8)
    return once(lambda x, s: F.gelu(x @ (weight.to(torch.float32) * s).T), numbers(4, 8), numbers(16, 1).abs())


def int8_matmul() -> Case:
    a, b = (numbers(32, 16) * 20).to(torch.int8), (numbers(16, 24, seed=1) * 20).to(torch.int8)
    return once(lambda a, b: torch._int_mm(a, b).to(torch.float32) * 0.5, a, b)


# ---- nested graphs


def repeated_region() -> Case:
    @torch.compiler.nested_compile_region
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(x @ w) + x

    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = layer(x, w)
        return x

    return once(function, numbers(4, 8), numbers(8, 8, seed=1))


def repeated_region_that_trains() -> Case:
    case = repeated_region()
    return once(case.function, numbers(4, 8, grad=True), numbers(8, 8, seed=1, grad=True), training=True)


def flex() -> Case:
    from torch.nn.attention.flex_attention import flex_attention

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + (q - k) * 0.1

    inputs = tuple(numbers(1, 2, 32, 16, seed=i) for i in range(3))
    return once(lambda q, k, v: flex_attention(q, k, v, score_mod=biased), *inputs)


def flex_with_a_block_mask() -> Case:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    inputs = tuple(numbers(1, 2, 128, 16, seed=i) for i in range(3))
    return once(lambda q, k, v: flex_attention(q * 2, k, v, block_mask=mask), *inputs)


def branch() -> Case:
    from torch._higher_order_ops.cond import cond

    def function(x: Tensor) -> Tensor:
        return cond(x.sum() > 0, lambda x: torch.sin(x) * 2, lambda x: torch.cos(x) + 1, (x,)) + 1

    return Case(function, ((numbers(4, 8).abs(),), (-numbers(4, 8).abs(),)))


def loop() -> Case:
    from torch._higher_order_ops.while_loop import while_loop

    def function(i: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.sin(x) * 2), (i, x))

    return once(function, torch.tensor(0), numbers(4, 8))


def scanned() -> Case:
    from torch._higher_order_ops.scan import scan

    def function(start: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return scan(lambda carry, y: (carry * 0.5 + y, carry + y), start, torch.sin(x), dim=0)

    return once(function, numbers(8), numbers(5, 8, seed=1), dynamo={"capture_scalar_outputs": True})


def scanned_associatively() -> Case:
    from torch._higher_order_ops.associative_scan import associative_scan

    def function(x: Tensor) -> Tensor:
        return associative_scan(lambda a, b: a * 0.5 + b, torch.tanh(x), dim=0, combine_mode="generic")

    return once(function, numbers(8, 4))


def checkpointed() -> Case:
    net = small_net()
    return once(lambda x: checkpoint(net, x, use_reentrant=False).sum(-1), numbers(3, 8, grad=True), training=True)


def own_autograd_function() -> Case:
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            (x,) = ctx.saved_tensors
            return grad * torch.tanh(x)

    return once(lambda x: Clipped.apply(x * 2) + 1, numbers(3, 8, grad=True), training=True)


def function_transforms() -> Case:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ w).sum()

    return once(lambda w, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x), numbers(8, 4), numbers(3, 2, 8, seed=1))


# ---- mutation and aliasing


def mutated_inputs() -> Case:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(0.5).add_(torch.sin(y))
        y[1:3] = x[1:3]
        return (x * y).sum(-1)

    return once(function, numbers(4, 8), numbers(4, 8, seed=1))


def outputs_that_are_views_of_inputs() -> Case:
    return once(lambda x, y: (x.t(), y.view(-1)[3:], x, torch.sin(x)), numbers(4, 8), numbers(4, 8, seed=1))


def outputs_that_are_views_of_each_other() -> Case:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.sin(x)
        return y, y.t(), y.view(-1)[2:], y

    return once(function, numbers(4, 8))


def inputs_that_overlap() -> Case:
    memory = numbers(5, 8)

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    return once(function, memory[:4], memory[1:])


def strided_inputs() -> Case:
    x = numbers(8, 6).t()
    return once(lambda a, b, c: torch.softmax(a * b + c, -1), x, numbers(1, 8).expand(6, 8), numbers(12, 16)[::2, ::2])


def views_that_train() -> Case:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[0].mul_(3)
        return y.view(2, 16)

    return once(function, numbers(4, 8, grad=True), training=True)


def mutated_in_a_module() -> Case:
    class Counted(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += x.mean(0)
            return x + self.calls

    return Case(seeded(Counted), ((numbers(2, 3),), (numbers(2, 3, seed=1),)))


def optimiser_step() -> Case:
    weights = [numbers(4, 8, seed=1, grad=True), numbers(8, seed=2, grad=True)]
    optimiser = torch.optim.AdamW(weights, lr=torch.tensor(0.01))
    for weight in weights:
        weight.grad = torch.ones_like(weight)

    def step() -> list[Tensor]:
        optimiser.step()
        return [weight.detach() for weight in weights]

    return Case(step, ((), ()))


# ---- numbers


def scalars() -> Case:
    return Case(
        lambda x, n, f, flag: torch.sin(x * f) + n if flag else x, ((numbers(4), 2, 0.5, True), (numbers(4), 3, 0.25, True))
    )


def zero_dimensional() -> Case:
    return once(lambda x, s: (x * s, s * 2, x.sum()), numbers(4, 8), torch.tensor(1.5))


def read_to_python() -> Case:
    def function(x: Tensor) -> Tensor:
        n = int(x.abs().sum().item())
        torch._check(n >= 2)
        return torch.zeros(n) + x.sum()

    return once(function, numbers(4, 8), dynamo={"capture_scalar_outputs": True})


def sizes_that_depend_on_data() -> Case:
    return once(
        lambda x: torch.sin(x[x > 0]).sum() + x.nonzero().sum(), numbers(4, 8), dynamo={"capture_dynamic_output_shape_ops": True}
    )


def complex_numbers() -> Case:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.fft.rfft(x)
        return (y * y.conj()).real, torch.view_as_real(y * (1 + 2j))

    return once(function, numbers(4, 8))


def complex_inputs() -> Case:
    x = torch.complex(numbers(4, 8), numbers(4, 8, seed=1))
    return once(lambda x, y: torch.exp(x) * y.conj(), x, x.conj())


def narrow_types() -> Case:
    def function(x: Tensor, b: Tensor, i: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        return x.to(torch.float8_e4m3fn).to(torch.float32), torch.sin(b) * 2, i + 3, h / 3, i.to(torch.uint16)

    return once(
        function, numbers(8), numbers(8, dtype=torch.bfloat16), torch.arange(8, dtype=torch.uint8), numbers(8, dtype=torch.half)
    )


def nothing_in_it() -> Case:
    return once(lambda x: torch.sin(x) @ torch.ones(8, 3), torch.empty(0, 8))


def constants_in_the_code() -> Case:
    return once(lambda x: x * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3), numbers(4, 3))


def infinite_and_missing() -> Case:
    return once(lambda x: torch.where(x > 0, x, float("-inf")).softmax(-1).nan_to_num(nan=float("inf")), numbers(4, 8))


def random_numbers() -> Case:
    return once(lambda x: torch.rand_like(x) + torch.bernoulli(torch.sigmoid(x)) + torch.randint(0, 5, (8,)), numbers(4, 8))


def decompositions_of_matrices() -> Case:
    def function(x: Tensor) -> Any:
        return torch.linalg.svdvals(x @ x.T) + 1, torch.sort(x, -1), torch.topk(x, 3).indices, torch.cumsum(x, 0)

    return once(function, numbers(4, 8))


def complex_eigenvalues() -> Case:
    return once(lambda x: torch.linalg.eigvals(x).abs().sum(), numbers(4, 4))


# ---- structure


def graph_breaks() -> Case:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x) * 2
        torch._dynamo.graph_break()
        return torch.cos(y) + 1 if float(y.sum()) > -1000 else y

    return once(function, numbers(4, 8))


def no_tensors_out() -> Case:
    return once(lambda x: {"none": None, "text": "a", "number": 3, "tensor": [x + 1, (x * 2,)]}, numbers(4))


def identity() -> Case:
    return once(lambda x: x, numbers(4))


def unused_inputs() -> Case:
    return once(lambda x, y, z: y * 2, numbers(4), numbers(4, seed=1), numbers(3, seed=2))


def autocast() -> Case:
    net = small_net()

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x) * 2

    return once(function, numbers(3, 8), training=True)


def parts_without_gradients() -> Case:
    net = small_net()

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.tanh(net(x)).mean()
        return net(x) * scale

    return once(function, numbers(3, 8, grad=True), training=True)


def dropout() -> Case:
    return once(lambda x: F.dropout(torch.sin(x), 0.5) * 2, numbers(8, 8, grad=True), training=True)


def hooks_on_tensors() -> Case:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x)
        y.register_hook(lambda grad: grad * 2)
        return y * 3

    return once(function, numbers(4, 8, grad=True), training=True)


def symbolic_sizes() -> Case:
    net = small_net()
    return Case(net, tuple((numbers(n, 8, seed=n),) for n in (3, 5, 7)), options={"dynamic": True})


def automatic_dynamic_training() -> Case:
    net = small_net()
    return Case(net, tuple((numbers(n, 8, seed=n),) for n in (3, 5, 7)), training=True)


def sparse() -> Case:
    matrix = torch.eye(4).to_sparse()
    return once(lambda x: torch.sin(torch.sparse.mm(matrix, x)) * 2, numbers(4, 8))


def sparse_input() -> Case:
    return once(lambda a, x: torch.sin(a @ x), torch.eye(4).to_sparse_csr(), numbers(4, 8))


def two_tensors() -> Case:
    from torch.testing._internal.two_tensor import TwoTensor

    return once(lambda x: torch.sin(x) * 2, TwoTensor(numbers(4, 8), numbers(4, 8, seed=1)))


def two_tensors_that_train() -> Case:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(numbers(4, 8), numbers(4, 8, seed=1)).requires_grad_()
    return once(lambda x, w: torch.sin(x) @ w, x, numbers(8, 4, grad=True), training=True)


def jagged() -> Case:
    x = torch.nested.nested_tensor([numbers(3, 4), numbers(5, 4, seed=1)], layout=torch.jagged)
    return once(lambda x: torch.sin(x) * 2, x)


def compiled_autograd() -> Case:
    return once(small_net(), numbers(3, 8), training=True, dynamo={"compiled_autograd": True})


def meta_device() -> Case:
    return once(lambda x: torch.sin(x) * 2, torch.empty(4, 8, device="meta"))


def reduce_overhead() -> Case:
    return once(small_net(), numbers(3, 8), options={"mode": "reduce-overhead"})


def fullgraph_with_options() -> Case:
    return once(small_net(), numbers(3, 8), training=True, options={"fullgraph": True, "options": {"epilogue_fusion": False}})


# ---- custom operators: registered when first asked for, for the life of the process

_library: list[Any] = []


def custom_ops() -> Any:
    if not _library:

        @torch.library.custom_op("tuner_hard::plus_one", mutates_args=())
        def plus_one(x: Tensor) -> Tensor:
            return x + 1

        plus_one.register_fake(torch.empty_like)
        plus_one.register_autograd(lambda ctx, grad: grad * 1)

        @torch.library.custom_op("tuner_hard::doubling", mutates_args={"x"})
        def doubling(x: Tensor, into: list[Tensor], name: str) -> None:
            x.mul_(2)

        _library.extend([plus_one, doubling])
    return torch.ops.tuner_hard


def custom_op() -> Case:
    ops = custom_ops()
    return once(lambda x: torch.sin(ops.plus_one(torch.cos(x) * 2)) + 1, numbers(4, 8))


def custom_op_that_trains() -> Case:
    ops = custom_ops()
    return once(lambda x: torch.sin(ops.plus_one(torch.cos(x) * 2)) + 1, numbers(4, 8, grad=True), training=True)


def custom_op_that_writes() -> Case:
    ops = custom_ops()

    def function(x: Tensor) -> Tensor:
        y = torch.sin(x)
        ops.doubling(y, [x], "name")
        ops.doubling(x, [], "other")
        return y + x

    return once(function, numbers(4, 8))


ALL = tuple(
    made
    for name, made in list(globals().items())
    if callable(made)
    and getattr(made, "__module__", "") == __name__
    and getattr(made, "__annotations__", {}).get("return") == "Case"
    and name != "once"
)
