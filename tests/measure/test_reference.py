"""A reference accepts what compilers legally make of a graph, and nothing that is visibly wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tuner.compilers.inductor.apply import compile_candidate
from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.hooks import inductor_config
from tuner.measure.device import open_device
from tuner.measure.reference import Reference, seeded
from tuner.plan import Plan
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def captured(function: Callable[..., Any], *inputs: Tensor) -> Graph:
    ((graph,),) = [program.graphs for program in capture(function, inputs)]
    return graph


def compiled(graph: Graph, plan: Plan) -> tuple[Callable[[list[Tensor]], Any], Any]:
    with torch.no_grad():
        return compile_candidate(
            to_fx(graph),
            make_inputs(graph, 0),
            plan,
            static_input_idxs=graph.static_inputs,
            is_inference=True,
            cpp_wrapper=inductor_config.cpp_wrapper,
            graph_id=0,
        )


def outcome(call: Callable[[list[Tensor]], Any], inputs: list[Tensor], mutated: tuple[int, ...] = ()) -> list[object]:
    own = [value.clone() for value in inputs]
    outputs = [value.clone() if isinstance(value, Tensor) else value for value in call(list(own))]
    return outputs + [own[i] for i in mutated]


def reference_of(function: Callable[..., Any], *inputs: Tensor, mutated: tuple[int, ...] = ()) -> Reference:
    """Of the graph that is traced of `function`, decomposed no further than to ATen."""
    with torch.no_grad():
        made = make_fx(function)(*(value.clone() for value in inputs))
        return Reference.of(made, inputs, mutated, seed=0)


def mlp(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.GELU(approximate="tanh"), nn.Linear(256, 128))
    return layers.to(dtype).requires_grad_(False)


def decayed(param: Tensor, gradient: Tensor, average: Tensor) -> None:
    average.lerp_(gradient, 0.1)
    param.mul_(0.99).addcdiv_(average, average.abs().sqrt() + 1e-3, value=-0.01)


HALF, BFLOAT = torch.float16, torch.bfloat16
# Name, function, inputs: chains that round, cancel, and add up many terms.
GRAPHS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "softmax": (lambda x, y: torch.softmax(x * 3 + y, -1), (drawn(64, 300), drawn(64, 300, seed=1))),
    "mlp of bfloat16": (mlp(BFLOAT), (drawn(64, 128, dtype=BFLOAT),)),
    "matmul, GELU of float16": (
        lambda x, y: functional.gelu(x @ y * 0.1),
        (drawn(64, 256, dtype=HALF), drawn(256, 64, dtype=HALF)),
    ),
    "long sums": (lambda x: (x.sum(), x.mean(-1), x.std()), (drawn(256, 2048),)),
    "layer norm far from zero": (lambda x: functional.layer_norm(x + 100, (2048,)), (drawn(64, 2048),)),
    "update": (decayed, (drawn(64, 64), drawn(64, 64, seed=1), drawn(64, 64, seed=2))),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_a_compiler_makes_is_accepted_and_what_is_damaged_is_not(name):
    function, inputs = GRAPHS[name]
    graph = captured(function, *inputs)
    default, _ = compiled(graph, Plan())
    for seed in range(3):
        values = make_inputs(graph, seed)
        reference = Reference.of(to_fx(graph), values, graph.mutated, seed)
        assert (reference.checkable, reference.reason) == (True, "")
        right = outcome(default, values, graph.mutated)
        assert reference.deviation(right) < 0.6
        for place, value in enumerate(right):
            assert isinstance(value, Tensor)
            share = 1.05 if value.dtype == BFLOAT else 1.01
            for damage in (lambda x, share=share: x * share, one_wrong, one_nan):
                wrong = [*right[:place], damage(value), *right[place + 1 :]]
                assert (found := reference.deviation(wrong)) > 1, (place, seed, found)


def one_wrong(value: Tensor) -> Tensor:
    """One element of usual size off by a quarter."""
    wrong = value.clone().reshape(-1)
    usual = int(wrong.double().abs().kthvalue((wrong.numel() + 1) // 2).indices)
    wrong[usual] *= 1.25
    return wrong.reshape(value.shape)


def one_nan(value: Tensor) -> Tensor:
    wrong = value.clone()
    wrong.view(-1)[-1] = math.nan
    return wrong


def test_the_inputs_are_left_as_they_were():
    values = [drawn(8, 8), drawn(8, 8, seed=1), drawn(8, 8, seed=2)]
    copies = [value.clone() for value in values]
    reference = reference_of(decayed_graph, *values, mutated=(0, 2))
    assert all(torch.equal(a, b) for a, b in zip(values, copies, strict=True))
    decayed(*copies)
    assert reference.deviation([None, copies[0], copies[2]]) < 1
    assert reference.deviation([None, values[0], copies[2]]) > 1, "what was not written is not what should be there"


def decayed_graph(param: Tensor, gradient: Tensor, average: Tensor) -> tuple[None]:
    decayed(param, gradient, average)
    return (None,)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, torch.float32])
def test_dtypes_named_in_the_graph_are_rewritten(dtype):
    """The exact result is out of reach of the dtype in between: in float64 the small summand survives."""

    def function(x: Tensor) -> list[Tensor]:
        sum_of_both = x.to(dtype) + torch.full((4,), 1e6 if dtype != HALF else 6e4, dtype=dtype)
        return [(torch.ops.prims.convert_element_type.default(sum_of_both, dtype) - (1e6 if dtype != HALF else 6e4)).float()]

    x = torch.full((4,), 0.01)
    reference = reference_of(function, x)
    assert reference.deviation([x.clone()]) < 1, "the exact value is right"
    assert reference.deviation(function(x)) < 1, "and so is eager's"
    assert reference.deviation([x + 1e6]) > 1


def test_rounding_to_float8_is_part_of_what_a_graph_computes():
    x = drawn(100, 10)
    reference = reference_of(lambda x: [x.to(torch.float8_e4m3fn).float() * 1.5], x)
    assert reference.deviation([x.to(torch.float8_e4m3fn).float() * 1.5]) == 0.0
    assert reference.deviation([x * 1.5]) > 1
    assert reference.deviation([x.to(torch.float8_e4m3fn).float() * 1.51]) > 1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_inputs_and_outputs_of_float8(dtype):
    x = drawn(50, 10).to(dtype)
    reference = reference_of(lambda x: [(x.float() * 2).to(dtype)], x)
    right = (x.float() * 2).to(dtype)
    assert reference.deviation([right]) == 0.0
    assert reference.deviation([right.float().mul(4).to(dtype)]) > 1


def test_what_cannot_run_in_float64_runs_in_its_own_precision_and_says_so():
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        bits = torch.ops.aten.view.dtype(x * 1.5, torch.int32)
        return [bits & 0x7FFFFF00, torch.ops.aten.view.dtype(bits, torch.float32) @ y]

    x, y = drawn(20, 20), drawn(20, 20, seed=1)
    reference = reference_of(function, x, y)
    assert reference.checkable
    assert "aten.view.dtype" in reference.reason
    bits, product = function(x, y)
    assert reference.deviation([bits, product]) < 1
    assert reference.deviation([bits, product * 1.001]) > 1
    assert reference.deviation([bits + 256, product]) == math.inf


def test_where_nothing_wider_can_run_eager_is_what_is_compared_with():
    """The graph reads memory past its input, which no copy of the input has."""
    memory = drawn(100)
    made = make_fx(lambda x: [torch.ops.aten.as_strided.default(x, [50], [1], 0) * 2])(memory[10:20])
    reference = Reference.of(made, [memory[10:20]], (), seed=0)
    assert reference.checkable
    assert "no float64 reference" in reference.reason
    assert reference.deviation([memory[:50] * 2]) < 1
    assert reference.deviation([memory[:50] * 2.01]) > 1


def test_an_op_of_float8_alone_is_compared_with_its_own_result():
    def function(x: Tensor, y: Tensor, scale: Tensor) -> list[Tensor]:
        return [torch.ops.aten._scaled_mm.default(x, y.t(), scale, scale, None, None, torch.bfloat16) * 2]

    x, y = (drawn(32, 32, seed=seed).to(torch.float8_e4m3fn) for seed in (0, 1))
    scale = torch.tensor(0.5)
    reference = reference_of(function, x, y, scale)
    assert "_scaled_mm" in reference.reason
    (right,) = function(x, y, scale)
    assert reference.deviation([right]) < 1
    assert reference.deviation([right * 1.1]) > 1


def test_integers_and_booleans_that_depend_on_rounding_are_excused_where_eager_shows_it():
    x, y = drawn(300, 300, dtype=BFLOAT), drawn(300, 300, seed=1, dtype=BFLOAT)
    reference = reference_of(lambda x, y: [x * 1.1 > y * 0.9, (x * 17).to(torch.int32)], x, y)
    wide, narrow = (x.double() * 1.1 > y.double() * 0.9), x * 1.1 > y * 0.9
    counted = (x * 17).to(torch.int32)
    assert not torch.equal(wide, narrow), "the case is about comparisons that fall either way"
    for value in (wide, narrow):
        assert reference.deviation([value, counted]) == 0.0
    assert reference.deviation([~wide, counted]) == math.inf
    assert reference.deviation([wide, counted + 1]) == math.inf


@pytest.mark.parametrize("view", ["expanded", "overlapping", "transposed", "scalar", "no elements", "every second"])
def test_layouts_of_inputs(view):
    x = drawn(12, 12)
    value = {
        "expanded": x[:, :1].expand(12, 7),
        "overlapping": x.reshape(-1).unfold(0, 5, 2),
        "transposed": x.t(),
        "scalar": x[1, 1],
        "no elements": x[:0],
        "every second": x[:, 1::2],
    }[view]
    reference = reference_of(lambda x: [torch.exp(x) * 2, None, 3], value)
    assert reference.deviation([value.exp() * 2, None, 3]) < 1
    assert reference.deviation([value.exp() * 2, None, 4]) == math.inf
    if value.numel():
        assert reference.deviation([value.exp() * 2.01, None, 3]) > 1


def test_complex_outputs():
    x = drawn(30, 30).to(torch.complex64)
    reference = reference_of(lambda x: [torch.fft.fft(x)], x)
    right = torch.fft.fft(x)
    assert reference.deviation([right]) < 1
    assert reference.deviation([right * 1.001]) > 1


def test_a_constant_of_the_graph_is_widened():
    root = nn.Module()
    root.register_buffer("constant", torch.full((4, 4), 0.1))
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.mm.default, (x, graph.get_attr("constant"))),))
    value = drawn(4, 4)
    reference = Reference.of(fx.GraphModule(root, graph), [value], (), 0)
    assert reference.reason == ""
    assert reference.deviation([value @ root.constant]) < 1


RANDOM = {
    "dropout": lambda x: functional.dropout(x.exp(), 0.3, training=True) + x.sin(),
    "bernoulli and rand_like": lambda x: (torch.bernoulli(torch.sigmoid(x)), torch.rand_like(x) * x.sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_the_same_again_under_another_grouping(name):
    graph = captured(RANDOM[name], drawn(32, 32))
    values = make_inputs(graph, 0)
    reference = Reference.of(to_fx(graph), values, graph.mutated, seed=7)
    assert not reference.checkable
    assert "draws random numbers" in reference.reason
    with pytest.raises(ValueError, match="random"):
        reference.deviation([])
    default, realised = compiled(graph, Plan())
    assert any(len(group) > 1 for group in realised.groups)
    split, _ = compiled(graph, Plan(groups=tuple((leaf,) for group in realised.groups for leaf in group)))

    def drawn_with(call: Callable[[list[Tensor]], Any], seed: int) -> list[object]:
        seeded(seed)
        return outcome(call, values)

    with torch.random.fork_rng(devices=[]):
        reference.compare_with(drawn_with(default, reference.seed))
        assert not reference.checkable
        assert reference.deviation(drawn_with(default, reference.seed)) == 0.0
        assert reference.deviation(drawn_with(split, reference.seed)) <= 1
        assert reference.deviation(drawn_with(split, reference.seed + 1)) > 1


def test_numbers_that_come_of_a_seed_among_the_inputs_are_random_too():
    seeds = torch.zeros(1, dtype=torch.int64)
    random, lookup = torch.ops.prims.inductor_random.default, torch.ops.prims.inductor_lookup_seed.default
    assert not reference_of(lambda x, seeds: [x * random([4, 4], lookup(seeds, 0), "rand")], drawn(4, 4), seeds).checkable


def test_attention_without_dropout_draws_nothing():
    q = drawn(1, 2, 16, 8)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert reference_of(lambda q: [attention(q, q, q)[0]], q).checkable
    assert reference_of(lambda q: [attention(q, q, q, is_causal=True, dropout_p=0.0)[0]], q).checkable
    random = torch.ops.aten._scaled_dot_product_attention_math.default
    assert not reference_of(lambda q: [random(q, q, q, dropout_p=0.5)[0]], q).checkable


@pytest.mark.parametrize("numbers", [64, 100_000])
@pytest.mark.parametrize("forgotten", [0, 31])
def test_an_element_that_is_not_written_is_noticed(numbers, forgotten):
    x = drawn(numbers)
    reference = reference_of(lambda x: [x * 2], x)

    def call(written: Tensor) -> list[Tensor]:
        made = torch.empty_like(x)
        made[written] = x[written] * 2
        return [made]

    every = torch.ones(numbers, dtype=torch.bool)
    most = every.clone()
    most[forgotten] = False
    call(every)  # leaves the right numbers in memory that may be handed out next
    with open_device("cpu").poisoned():
        right, wrong = call(every), call(most)
    assert reference.deviation(right) < 1
    assert reference.deviation(wrong) > 1


def test_a_native_op_is_as_good_as_eager_where_eager_runs_it_undecomposed():
    graph = captured(lambda x: functional.gelu(functional.layer_norm(x, (256,))), drawn(64, 256))
    assert graph.native_form is not None
    for seed in range(3):
        inputs, native = make_inputs(graph, seed), to_fx(graph.native_form)
        users = outcome(lambda values, native=native: fx.Interpreter(native).run(*values), inputs)
        alone = Reference.of(to_fx(graph), inputs, (), seed).deviation(users)
        known = Reference.of(to_fx(graph), inputs, (), seed, native)
        assert known.deviation(users) <= min(alone, 0.5)
        assert known.deviation([one_wrong(users[0])]) > 1
        assert known.deviation([users[0] * 1.01]) > 1
