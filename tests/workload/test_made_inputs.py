"""Inputs made for a stored graph are like those that were seen, and what is stored of them is small."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from tracing import numbers

from tuner.compilers.inductor.capture import capture
from tuner.errors import SpecError
from tuner.workload.fx import make_inputs
from tuner.workload.graph import Graph, InputData
from tuner.workload.seen import MAX_LOOKED_AT, seen_in, seen_in_all


def stored(function, *inputs) -> Graph:
    """The captured graph, as a store gives it back."""
    ((graph,),) = [program.graphs for program in capture(function, inputs)]
    return Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False)))


def made_like(value: torch.Tensor, seed: int = 0) -> torch.Tensor:
    (made,) = make_inputs(stored(lambda x: torch.ops.aten.clone(x), value), seed)
    return made


def drawn(kind: str, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, kind)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.2
    if dtype.is_floating_point:
        return (3 + 2 * torch.randn(shape, generator=generator)).to(dtype)
    return torch.randint(0 if kind.startswith("uint") else -100, 100, shape, generator=generator).to(dtype)


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS, "bool"])
def test_made_data_keep_the_dtype_and_the_bounds(kind):
    seen = drawn(kind, 40, 30)
    made = made_like(seen)
    assert (made.dtype, made.shape, made.stride()) == (seen.dtype, seen.shape, seen.stride())
    wide, bounds = made.double(), seen.double()
    assert wide.isfinite().all()
    assert bounds.min() <= wide.min() < wide.max() <= bounds.max()


@pytest.mark.parametrize("kind", FLOATS)
def test_made_floats_have_the_mean_and_the_deviation_seen(kind):
    seen, made = drawn(kind, 200, 100).double(), made_like(drawn(kind, 200, 100)).double()
    assert float(made.mean()) == pytest.approx(float(seen.mean()), abs=0.1)
    assert float(made.std()) == pytest.approx(float(seen.std()), rel=0.05)


def test_made_booleans_are_true_as_often():
    assert float(made_like(drawn("bool", 100, 100)).double().mean()) == pytest.approx(0.2, abs=0.02)


def test_every_integer_between_the_bounds_is_drawn():
    seen = torch.randint(-2, 4, (500,), generator=torch.Generator().manual_seed(0))
    assert set(made_like(seen).tolist()) == {-2, -1, 0, 1, 2, 3}


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "every second column": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(16, 12),
    "expanded in front": lambda x: x[0].expand(5, 3, 12),
    "every element the same memory": lambda x: x[0, 0].expand(4, 4),
    "overlapping": lambda x: x.reshape(-1).unfold(0, 3, 1),
    "channels last": lambda x: x.reshape(2, 4, 4, 6).to(memory_format=torch.channels_last),
    "offset": lambda x: x[3:, 2:],
    "no elements": lambda x: x[:0],
    "no elements, expanded": lambda x: x[:0, :1].expand(0, 7),
    "no dimensions": lambda x: x[1, 1],
    "one element": lambda x: x[:1, :1],
    "size 1 with an odd stride": lambda x: x.as_strided((1, 12), (7, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["float32", "int64", "bool", "bfloat16"])
def test_made_data_keep_shape_and_stride(layout, kind):
    seen = LAYOUTS[layout](drawn(kind, 16, 12))
    made = made_like(seen)
    assert (made.dtype, made.shape, made.stride()) == (seen.dtype, seen.shape, seen.stride())
    if made.numel():
        assert seen.double().min() <= made.double().min()
        assert made.double().max() <= seen.double().max()


def test_made_data_fill_an_expanded_input_along_its_own_memory_only():
    made = made_like(numbers(16, 1).expand(16, 12))
    assert torch.equal(made, made[:, :1].expand(16, 12))
    assert len(set(made[:, 0].tolist())) > 1


EXACT = {
    "causal mask": torch.ones(64, 64, dtype=torch.bool).tril(),
    "causal mask of 2,048": torch.ones(2048, 2048, dtype=torch.bool).tril(),
    "additive causal mask": torch.full((64, 64), float("-inf")).triu(1),
    "padding mask": torch.arange(64).expand(8, 64) < torch.tensor([[64], [3], [17], [0], [50], [1], [63], [33]]),
    "all true": torch.ones(1000, dtype=torch.bool),
    "zeros": torch.zeros(100, 100),
    "a constant of bfloat16": torch.full((100,), 0.1, dtype=torch.bfloat16),
    "NaN-free infinity": torch.full((100,), float("inf")),
    "block of int8": torch.cat([torch.full((100,), -128), torch.full((100,), 127)]).to(torch.int8),
    "largest int64": torch.full((3,), 2**63 - 1),
    "smallest int64": torch.full((3,), -(2**63)),
    "runs of uint16": torch.cat([torch.full((100,), 3), torch.full((100,), 65535)]).to(torch.uint16),
    "largest uint64": torch.full((3,), 2**64 - 1, dtype=torch.uint64),
    "odd double": torch.full((20,), math.pi, dtype=torch.float64),
    "scalar": torch.tensor(0.1),
    "scalar integer": torch.tensor(2**53 + 1),
    "scalar boolean": torch.tensor(True),
    "transposed mask": torch.ones(64, 64, dtype=torch.bool).tril().t(),
    "expanded mask": torch.ones(64, 64, dtype=torch.bool).tril().expand(3, 8, 64, 64),
}


@pytest.mark.parametrize("name", EXACT)
def test_masks_and_constants_are_made_exactly_as_they_were(name):
    seen = EXACT[name]
    for seed in (0, 1):
        assert torch.equal(made_like(seen, seed), seen)


def test_random_data_are_not_stored():
    seen = numbers(512, 512)
    assert seen_in(seen).runs is None
    assert str(seen[0, 0].item())[:6] not in json.dumps(seen_in(seen).to_json())


def test_a_random_mask_is_not_stored():
    assert seen_in(drawn("bool", 100, 100)).runs is None


def test_a_graph_with_big_weights_is_small():
    layer = nn.Linear(1024, 1024)
    graph = stored(layer, numbers(2, 1024))
    assert len(json.dumps(graph.to_json())) < 4000
    text = json.dumps(graph.to_json())
    assert all(str(value)[:7] not in text for value in layer.weight[0, :20].tolist())


def test_the_text_of_a_mask_stays_small():
    assert len(json.dumps(seen_in(EXACT["causal mask of 2,048"]).to_json())) < 100_000


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_do_not_spoil_the_bounds(odd, share):
    seen = torch.where(torch.rand(2000, generator=torch.Generator().manual_seed(1)) < share, odd, 5 + numbers(2000))
    data = seen_in(seen)
    assert all(math.isfinite(number) for number in (data.low, data.high, data.mean, data.std))
    made = made_like(seen)
    if share < 1:
        assert made.isfinite().all()
        assert 3 < made.mean() < 7


@pytest.mark.parametrize("values", [[-(2**63), 2**63 - 1, 5, 7], [2**63 - 2, 2**63 - 1], [-(2**63), 1 - 2**63]])
def test_extreme_integers_are_drawn_between_their_bounds(values):
    seen = torch.tensor(values)[torch.randint(len(values), (200,), generator=torch.Generator().manual_seed(0))]
    made = made_like(seen)
    assert min(values) <= made.min()
    assert made.max() <= max(values)


def test_huge_doubles_are_drawn_between_their_bounds():
    seen = numbers(2000).double() * 4e307
    data = seen_in(seen)
    assert all(math.isfinite(number) for number in (data.low, data.high, data.mean, data.std))
    made = made_like(seen)
    assert made.isfinite().all()
    assert seen.abs().max() * 0.5 < made.abs().max() <= seen.abs().max()


def test_complex_inputs_are_made_without_bounds():
    made = made_like(numbers(100).to(torch.complex64))
    assert made.dtype == torch.complex64
    assert made.isfinite().all()


def test_made_inputs_depend_on_the_seed_alone():
    graph = stored(lambda x, y: x @ y, numbers(4, 4), numbers(4, 4))
    one, same, other = make_inputs(graph, 1), make_inputs(graph, 1), make_inputs(graph, 2)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[1]), "two inputs of one shape get different data"
    torch.manual_seed(5)
    drawn_before = torch.get_rng_state()
    make_inputs(graph, 1)
    assert torch.equal(torch.get_rng_state(), drawn_before), "the user's generator is left alone"


def test_each_input_gets_the_data_seen_in_itself():
    graph = stored(lambda x, i, mask: torch.where(mask, x[i], 0.0), 100 + numbers(50, 4), torch.arange(7), torch.ones(7, 1) > 0)
    by_dtype = {made.dtype: made for made in make_inputs(graph, 0)}
    assert by_dtype[torch.float32].min() > 90
    assert 0 <= by_dtype[torch.int64].min() <= by_dtype[torch.int64].max() <= 6
    assert by_dtype[torch.bool].all()


def test_the_native_form_is_given_the_same_inputs():
    graph = stored(nn.LayerNorm(8), 100 + numbers(4, 8))
    assert graph.native_form is not None
    assert "aten.native_layer_norm.default" in graph.native_form.calls
    pairs = zip(make_inputs(graph, 0), make_inputs(graph.native_form, 0), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_data_come_back_from_json_as_they_were():
    for seen in (*EXACT.values(), numbers(100), drawn("int8", 100), torch.zeros(0)):
        data = seen_in(seen)
        assert InputData.from_json(json.loads(json.dumps(data.to_json(), allow_nan=False))) == data
        hash(data)


def test_what_is_seen_is_that_of_the_first_call_before_it_writes():
    graph = stored(lambda x: x.mul_(1000.0), numbers(64))
    assert graph.data[0].high < 10


def places(values: list[torch.Tensor]) -> list[int]:
    """Where each tensor's first element lies, in bytes from that of the first tensor with elements."""
    start = next(value.data_ptr() for value in values if value.numel())
    return [value.data_ptr() - start if value.numel() else 0 for value in values]


ALIASED = {
    "overlapping slices": lambda x: (x[:50], x[20:90]),
    "one before the other": lambda x: (x[40:], x[:60]),
    "the same": lambda x: (x[:100], x[:100].view(10, 10)),
    "a matrix and its columns": lambda x: (x.view(10, 20), x.view(10, 20).t()[3], x.view(10, 20)[:, 5:9]),
    "neighbours": lambda x: (x[:8], x[8:20]),
    "an expanded element": lambda x: (x[3].expand(5, 4), x[:10]),
    "other bits": lambda x: (x[:50], x.view(torch.int32)[10:60]),
}


@pytest.mark.parametrize("name", ALIASED)
def test_inputs_that_shared_memory_do_so_again(name):
    seen = list(ALIASED[name](numbers(200)))
    graph = stored(lambda *values: [value * 2 for value in values], *seen)
    made = make_inputs(graph, 3)
    order = {(meta.value[0], tuple(meta.value[1]), tuple(meta.value[2])): i for i, meta in enumerate(graph.inputs)}
    ordered = [made[order[str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride())]] for x in seen]
    shared = [i for i, x in enumerate(seen) if x.untyped_storage().data_ptr() == seen[0].untyped_storage().data_ptr()]
    assert len(shared) > 1
    assert places([ordered[i] for i in shared]) == places([seen[i] for i in shared])
    assert [x.stride() for x in ordered] == [x.stride() for x in seen]
    assert len({ordered[i].untyped_storage().data_ptr() for i in shared}) == 1


def test_inputs_of_their_own_memory_get_their_own():
    graph = stored(lambda x, y: x + y, numbers(50), numbers(50, seed=1))
    assert all(seen.shares is None for seen in graph.data)
    one, other = make_inputs(graph, 0)
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def test_what_a_mutated_alias_gives_is_one_base_that_is_made_as_it_was():
    """AOTAutograd hands the graph the base of inputs that share memory and are written."""
    base = numbers(10)
    graph = stored(lambda a, b: a.mul_(2) + b.sum(), base[:5], base[2:7])
    (made,) = make_inputs(graph, 0)
    assert (made.shape, graph.mutated) == ((10,), (0,))


def test_a_mask_that_shares_memory_is_made_exactly():
    memory = torch.cat([torch.zeros(100), torch.randn(100, generator=torch.Generator().manual_seed(0))])
    graph = stored(lambda zeros, both: (zeros + 1, both * 2), memory[:100], memory)
    for made in make_inputs(graph, 0):
        assert not made[:100].any()
        assert made.numel() == 100 or made[100:].any()


def test_where_memory_is_shared_is_not_in_the_key():
    x = numbers(100)
    aliased, apart = (stored(lambda a, b: a * 2 + b, *pair) for pair in ((x[:50], x[20:70]), (x[:50].clone(), x[20:70].clone())))
    assert any(seen.shares for seen in aliased.data)
    assert aliased.key == apart.key
    assert not any(seen.shares for seen in apart.data)


def test_graphs_stored_before_sharing_was_seen_are_read():
    graph = stored(lambda a: a * 2, numbers(10))
    assert [len(row) for row in graph.to_json()["data"]] == [5], "what shares nothing is stored as it always was"


@pytest.mark.parametrize("shares", [[0, 0], [1, 0], [2, 0], [-1, 0], ["x", 0], [0], 3, [0, None]])
def test_a_stored_graph_whose_inputs_share_memory_with_none_before_them_is_refused(shares):
    text = stored(lambda a, b: a * 2 + b, numbers(10), numbers(10)).to_json()
    text["data"][0] = [*text["data"][0][:5], shares]
    with pytest.raises(SpecError):
        Graph.from_json(text)


def test_equal_seeds_give_equal_bits_in_every_process(tmp_path):
    x = numbers(40, 50)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    inputs = (x, x[3:9], x.reshape(-1).unfold(0, 3, 1), mask, x.to(torch.bfloat16), x.to(torch.float8_e5m2), torch.arange(30) % 7)
    graph = stored(lambda *values: [torch.ops.aten.clone(value) for value in values], *inputs)
    (tmp_path / "graph.json").write_text(json.dumps(graph.to_json()))
    lines = (
        "import hashlib, json, sys, torch; from pathlib import Path; from tuner.workload.fx import make_inputs; "
        "from tuner.workload.graph import Graph; graph = Graph.from_json(json.loads(Path(sys.argv[1]).read_text())); "
        "made = make_inputs(graph, 5); "
        "print(*[hashlib.sha256(x.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for x in made])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", lines, str(tmp_path / "graph.json")],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path("/"),
        ).stdout
        for threads in ("1", "2")
    }
    assert len(printed) == 1
    assert len(set(printed.pop().split())) == len(inputs)


def test_of_a_huge_input_a_part_is_looked_at():
    huge = torch.arange(3, MAX_LOOKED_AT + 3, dtype=torch.int32).repeat(2)
    seen = seen_in(huge)
    assert 3 <= seen.low < 100
    assert MAX_LOOKED_AT - 100 < seen.high < MAX_LOOKED_AT + 3, "indexes that were never seen are not made up"
    half = seen_in(torch.zeros(2, MAX_LOOKED_AT, dtype=torch.bool))
    assert (half.mean, half.runs) == (0.0, None)
    small = seen_in(torch.zeros(2, MAX_LOOKED_AT)[:, :1].expand(2, 10 * MAX_LOOKED_AT))
    assert small.runs == ((0.0, 2),), "what is the same memory is small"


def test_sharing_is_seen_of_the_memory_and_not_of_equal_values():
    x = numbers(10)
    assert [seen.shares for seen in seen_in_all([x, x.clone(), x[4:], x[:0]])] == [None, None, (0, 16), None]


def test_slices_far_apart_in_one_memory_are_made_apart():
    cache = torch.randn(1000, 16)
    near, far = seen_in_all([cache[:2], cache[2:4]]), seen_in_all([cache[:2], cache[-2:]])
    assert near[1].shares == (0, 2 * 16 * 4)
    assert far[1].shares is None
