"""One graph in the measuring process: candidates are compiled, checked against eager and timed on restored state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from sessions import graph_of, numbers, session_on, softmax_graph, update_graph

from tuner.anatomy import Anatomy
from tuner.compilers.inductor import apply
from tuner.errors import UnsupportedGraph
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers import builder as builder_module
from tuner.workers import session as session_module
from tuner.workers.builder import Builder, fake_inputs
from tuner.workers.limits import limits
from tuner.workers.session import DEFAULT_KEY, CompileSession, Session
from tuner.workload.fx import make_inputs

NATIVE = Plan(native=("aten._softmax.default",))
KNOB = Plan(config=(("realize_opcount_threshold", 1),))


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def softmax() -> Session:
    return session_on(softmax_graph())


@pytest.fixture
def writing() -> Session:
    return session_on(update_graph())


def groups_of(session: Session):
    return canonical_groups(session.describe_default()["realised"])


def test_the_default_is_described(softmax):
    told = softmax.describe_default()
    assert told["status"] == "ok"
    assert 0 <= told["error"] <= 1
    assert told["default_ms"] > 0
    assert told["repetitions"] >= 1
    assert len(told["code_key"]) == 64
    assert any(len(group) > 1 for group in told["realised"])


def test_the_default_is_the_same_code_in_a_second_session(softmax):
    again = session_on(softmax_graph(), seed=5)
    assert again.describe_default()["code_key"] == softmax.describe_default()["code_key"]
    assert groups_of(again) == groups_of(softmax)


def test_no_fusion_is_realised_as_asked(softmax):
    wanted = no_fusion(groups_of(softmax))
    verdict = softmax.try_plan(Plan(groups=wanted), wanted, [])
    assert verdict["status"] == "ok"
    assert canonical_groups(verdict["realised"]) == wanted
    assert verdict["code_key"] != softmax.describe_default()["code_key"]
    assert 0 <= verdict["error"] <= 1


def test_the_anatomy_of_a_graph_is_told_and_nothing_is_compiled(softmax, monkeypatch):
    monkeypatch.setattr("torch._inductor.codecache.CppCodeCache.load_async", None)
    told = softmax.anatomy(Plan())
    assert told["status"] == "ok"
    anatomy = Anatomy.from_json(told["anatomy"])
    assert anatomy.groups == groups_of(softmax)
    alone = Plan(groups=no_fusion(anatomy.groups))
    assert Anatomy.from_json(softmax.anatomy(alone)["anatomy"]) == replace(anatomy, groups=alone.groups)
    only_compiling = CompileSession(Builder(softmax.builder.graph, fake_inputs(softmax.builder.graph)))
    assert only_compiling.anatomy(Plan())["anatomy"] == told["anatomy"]
    impossible = Plan(native=("aten._softmax.default#1",))
    assert softmax.anatomy(impossible)["status"] == "refused"


def test_after_an_anatomy_was_read_the_same_candidates_are_compiled_as_before(softmax):
    before = softmax.describe_default()["code_key"]
    softmax.anatomy(NATIVE)
    softmax.anatomy(Plan())
    assert softmax.try_plan(NATIVE, None, [])["status"] == "ok"
    assert softmax.try_plan(Plan(groups=groups_of(softmax)), None, [])["code_key"] == before


def test_a_native_op_is_kept_and_agrees_with_eager(softmax):
    verdict = softmax.try_plan(NATIVE, None, [])
    assert verdict["status"] == "ok"
    assert any("FallbackKernel" in leaf or "ExternKernel" in leaf for group in verdict["realised"] for leaf in group)


def test_a_graph_can_be_left_to_eager_and_is_timed_like_any_candidate(softmax):
    eager = Plan(compiler="eager", native=NATIVE.native)
    verdict = softmax.try_plan(eager, None, [])
    assert verdict["status"] == "ok"
    assert all(len(group) == 1 for group in verdict["realised"])
    assert len(softmax.time_plans([eager.key], 3, seed=0)["times"][eager.key]) == 3


def test_where_a_plan_is_not_allowed_it_is_refused_and_no_failure_of_the_compilers(softmax):
    verdict = softmax.try_plan(Plan(native=("aten._softmax.default#1",)), None, [])
    assert (verdict["status"], verdict["why"]) == ("refused", "not allowed here")
    assert "aten._softmax.default#1" in verdict["message"]


def test_a_grouping_that_the_compiler_does_not_make_is_told_with_what_it_makes(softmax):
    verdict = softmax.try_plan(Plan(), no_fusion(groups_of(softmax)), [])
    assert verdict["status"] == "not_realised"
    assert canonical_groups(verdict["realised"]) == groups_of(softmax)


def test_known_code_is_refused_before_the_c_compiler_runs(softmax, monkeypatch):
    known = softmax.try_plan(NATIVE, None, [])["code_key"]

    def compiled(*_, **__):
        raise AssertionError("the C++ compiler was started")

    monkeypatch.setattr("torch._inductor.codecache.CppCodeCache.load_async", compiled)
    verdict = softmax.try_plan(NATIVE, None, [known])
    assert (verdict["status"], verdict["code_key"]) == ("duplicate", known)
    assert softmax.try_plan(NATIVE, None, [])["status"] == "compile_error", "without the refusal it would have been"


def test_a_plan_that_changes_nothing_is_a_duplicate_of_the_default(softmax):
    code_key = softmax.describe_default()["code_key"]
    same = Plan(groups=groups_of(softmax))
    assert softmax.try_plan(same, same.groups, [code_key])["status"] == "duplicate"


def test_wrong_results_are_found_and_not_timed(softmax, monkeypatch):
    real = builder_module.compile_candidate

    def lying(*args, **kwargs):
        compiled, realised = real(*args, **kwargs)

        def run(inputs):
            (output,) = compiled(inputs)
            output[3, 7] += 0.01
            return (output,)

        return run, realised

    monkeypatch.setattr(builder_module, "compile_candidate", lying)
    verdict = softmax.try_plan(NATIVE, None, [])
    assert verdict["status"] == "wrong"
    assert verdict["error"] > 1
    assert "times the tolerance" in verdict["message"]
    with pytest.raises(KeyError):
        softmax.time_plans([NATIVE.key], 1, 0)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda outputs: outputs[:-1], id="an output is missing"),
        pytest.param(lambda outputs: (outputs[0].double(),), id="another dtype"),
        pytest.param(lambda outputs: (outputs[0].fill_(float("nan")),), id="NaN"),
        pytest.param(lambda outputs: (outputs[0].T,), id="another shape"),
    ],
)
def test_outputs_of_another_kind_are_wrong(softmax, monkeypatch, spoil):
    real = builder_module.compile_candidate

    def lying(*args, **kwargs):
        compiled, realised = real(*args, **kwargs)
        return lambda inputs: spoil(compiled(inputs)), realised

    monkeypatch.setattr(builder_module, "compile_candidate", lying)
    verdict = softmax.try_plan(NATIVE, None, [])
    assert (verdict["status"], verdict["error"]) == ("wrong", None)


def test_a_wrong_write_is_found_though_the_outputs_are_right(writing, monkeypatch):
    real = builder_module.compile_candidate

    def lying(*args, **kwargs):
        compiled, realised = real(*args, **kwargs)

        def run(inputs):
            written = [inputs[i] for i in writing.timed.mutated]
            outputs = compiled(inputs)
            written[0][0, 0] += 1.0
            return outputs

        return run, realised

    monkeypatch.setattr(builder_module, "compile_candidate", lying)
    assert writing.try_plan(KNOB, None, [])["status"] == "wrong"


def test_a_write_that_does_not_happen_is_found(writing, monkeypatch):
    real = builder_module.compile_candidate

    def lying(*args, **kwargs):
        _, realised = real(*args, **kwargs)
        return lambda inputs: (), realised

    monkeypatch.setattr(builder_module, "compile_candidate", lying)
    assert writing.try_plan(KNOB, None, [])["status"] == "wrong"


def test_what_the_compiler_raises_is_one_line(softmax, monkeypatch):
    def broken(*_, **__):
        raise ValueError("first line\nsecond line")

    monkeypatch.setattr(builder_module, "compile_candidate", broken)
    verdict = softmax.try_plan(NATIVE, None, [])
    assert (verdict["status"], verdict["message"]) == ("compile_error", "ValueError: first line")
    assert "second line" in verdict["traceback"]


def test_a_session_goes_on_after_a_candidate_that_fails(softmax, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(builder_module, "compile_candidate", lambda *_, **__: 1 / 0)
        assert softmax.try_plan(NATIVE, None, [])["status"] == "compile_error"
    assert softmax.try_plan(NATIVE, None, [])["status"] == "ok"
    assert set(softmax.time_plans([NATIVE.key], 2, 0)["times"]) == {DEFAULT_KEY, NATIVE.key}


def test_a_candidate_leaves_nothing_behind_in_the_compiler(softmax):
    before = apply.inductor_config.save_config_portable()
    softmax.try_plan(KNOB, None, [])
    softmax.try_plan(Plan(groups=no_fusion(groups_of(softmax))), None, [])
    softmax.try_plan(Plan(), no_fusion(groups_of(softmax)), [])
    assert apply.inductor_config.save_config_portable() == before
    assert apply.GraphLowering.save_output_code is None


def test_times_come_in_pairs_with_those_of_the_default(softmax):
    softmax.try_plan(NATIVE, None, [])
    times = softmax.time_plans([NATIVE.key], 5, 0)["times"]
    assert {key: len(samples) for key, samples in times.items()} == {DEFAULT_KEY: 5, NATIVE.key: 5}
    assert all(sample > 0 for samples in times.values() for sample in samples)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "crash"), (MemoryError(), "out_of_resources")])
def test_a_candidate_whose_call_raises_is_told_by_what_it_raised(softmax, monkeypatch, error, status):
    real = builder_module.compile_candidate

    def raising(*args, **kwargs):
        _, realised = real(*args, **kwargs)

        def run(inputs):
            raise error

        return run, realised

    monkeypatch.setattr(builder_module, "compile_candidate", raising)
    verdict = softmax.try_plan(NATIVE, None, [])
    assert (verdict["status"], verdict["message"]) == (status, type(error).__name__)
    assert verdict["sticky"] is False
    assert verdict["code_key"]


def test_a_plan_that_is_forgotten_is_not_timed_and_the_default_stays(softmax):
    softmax.try_plan(NATIVE, None, [])
    softmax.forget([NATIVE.key, DEFAULT_KEY])
    assert set(softmax.entries) == {DEFAULT_KEY}


def test_a_plan_that_is_compiled_only_is_not_run(softmax, monkeypatch):
    real = builder_module.compile_candidate

    def not_to_be_run(*args, **kwargs):
        return (lambda inputs: pytest.fail("it was run")), real(*args, **kwargs)[1]

    monkeypatch.setattr(builder_module, "compile_candidate", not_to_be_run)
    assert softmax.compile_plan(NATIVE, None, [])["status"] == "ok"
    assert NATIVE.key not in softmax.entries


def test_what_limits_are_derived_from_is_told(softmax):
    told = softmax.describe_default()
    found = limits(told)
    assert found.try_s > found.compile_s >= told["compile_s"]
    assert found.call_s == told["call_s"] > 0


def test_a_cold_cache_is_flushed_before_every_call_that_counts(monkeypatch):
    flushed = []
    device = open_device("cpu")
    monkeypatch.setattr(device, "flush", lambda: flushed.append(1))
    session = Session(softmax_graph(), 0, Policy.for_cpu(1, cache="cold"), device)
    assert session.sized[0].repetitions == 1
    before = len(flushed)
    session.time_plans([], 5, 0)
    assert len(flushed) - before >= 5


def test_a_plan_that_was_not_tried_is_not_timed(softmax):
    with pytest.raises(KeyError):
        softmax.time_plans([NATIVE.key], 1, 0)


def test_written_inputs_are_restored_between_runs(writing):
    assert writing.timed.mutated
    fresh = make_inputs(writing.builder.graph, seed=0)
    entry = writing.entries[DEFAULT_KEY]
    seen = []
    (real,) = entry.runs
    entry.runs = [lambda: (seen.append([value.clone() for value in writing.timed.values]), real())[1]]
    writing.sized[0].repetitions = 3
    assert writing.try_plan(KNOB, None, [])["status"] == "ok"
    writing.time_plans([KNOB.key], 4, 0)
    assert len(seen) >= 4 * 3
    for inputs in seen:
        assert all(torch.equal(value, original) for value, original in zip(inputs, fresh, strict=True))


def test_writes_are_compared_with_eager(writing):
    assert writing.describe_default()["error"] <= 1
    outcome = writing.timed.outcome(writing.entries[DEFAULT_KEY].built.function)
    assert writing.timed.reference.deviation(outcome) <= 1
    for place, i in zip((-2, -1), writing.timed.mutated, strict=True):
        unwritten = list(outcome)
        unwritten[place] = writing.timed.originals[i]
        assert writing.timed.reference.deviation(unwritten) > 1


def test_inputs_are_fresh_for_each_seed():
    graph = softmax_graph()
    one, same, other = (session_on(graph, seed) for seed in (0, 0, 1))
    assert torch.equal(one.timed.values[0], same.timed.values[0])
    assert not torch.equal(one.timed.values[0], other.timed.values[0])


def test_a_candidate_is_checked_on_other_inputs_than_those_it_is_timed_on(softmax, monkeypatch):
    real = builder_module.compile_candidate
    timed = [value.clone() for value in softmax.timed.values]

    def knows_the_timed_inputs(*args, **kwargs):
        compiled, realised = real(*args, **kwargs)

        def run(inputs):
            known = all(torch.equal(value, other) for value, other in zip(inputs, timed, strict=True))
            (output,) = compiled(inputs)
            return (output if known else output + 0.01,)

        return run, realised

    monkeypatch.setattr(builder_module, "compile_candidate", knows_the_timed_inputs)
    assert softmax.try_plan(NATIVE, None, [])["status"] == "wrong"


def test_an_output_that_is_not_written_is_found(softmax, monkeypatch):
    real = builder_module.compile_candidate

    def forgetful(*args, **kwargs):
        compiled, realised = real(*args, **kwargs)

        def run(inputs):
            (output,) = compiled(inputs)
            right, shape = output.clone(), output.shape
            del output
            # memory that held the right values in the call before
            left = torch.empty(shape)
            left[1:] = right[1:]
            return (left,)

        return run, realised

    monkeypatch.setattr(builder_module, "compile_candidate", forgetful)
    assert softmax.try_plan(NATIVE, None, [])["status"] == "wrong"


RANDOM = {
    "rand": lambda x: x + torch.rand_like(x),
    "randint": lambda x: x + torch.randint(0, 5, (3, 4)),
    "normal": lambda x: torch.normal(x, 1.0),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.abs(), 2),
    "uniform": lambda x: x.clone().uniform_(),
    "exponential": lambda x: x.clone().exponential_(),
    "cauchy": lambda x: x.clone().cauchy_(),
    "geometric": lambda x: x.clone().geometric_(0.5),
    "log-normal": lambda x: x.clone().log_normal_(),
    "poisson": lambda x: torch.poisson(x.abs()),
    "binomial": lambda x: torch.binomial(x.abs().ceil(), torch.full_like(x, 0.5)),
    "gamma": lambda x: torch._standard_gamma(x.abs()),
    "dirichlet": lambda x: torch._sample_dirichlet(x.abs()),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_of_a_graph_that_draws_random_numbers_only_the_groups_may_change(name):
    session = session_on(graph_of(RANDOM[name], numbers(3, 4)))
    told = session.describe_default()
    assert not told["checkable"]
    assert "draws random numbers" in told["reason"]
    assert told["error"] <= 1, "the same numbers again, from the same seed"
    refused = session.try_plan(KNOB, None, [])
    assert refused["status"] == "refused"
    assert "draws random numbers" in refused["message"]
    groups = no_fusion(groups_of(session)) if told["realised"] else None
    assert session.try_plan(Plan(groups=groups), groups, [])["status"] == "ok"


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: torch.nn.functional.dropout(x.exp(), 0.5, training=False), id="dropout that is off"),
        pytest.param(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), id="attention"),
        pytest.param(lambda x: torch.nn.functional.layer_norm(x, (4,)), id="layer norm"),
        pytest.param(lambda x: torch.special.polygamma(1, x.abs()) + torch.lgamma(x), id="gamma functions"),
    ],
)
def test_a_graph_that_draws_none_is_not_refused(function):
    assert session_on(graph_of(function, numbers(1, 2, 3, 4))).describe_default()["status"] == "ok"


def test_a_graph_whose_default_cannot_be_checked_is_refused(monkeypatch):
    graph = softmax_graph()
    monkeypatch.setattr(session_module.Sized, "deviation", lambda *_: float("inf"))
    with pytest.raises(UnsupportedGraph) as caught:
        session_on(graph)
    assert caught.value.reason == "unchecked"


def test_peak_memory_is_of_a_process_that_holds_inputs_and_makes_one_call():
    def function(x):
        return (x @ x).relu().sum()

    small, large = (session_on(graph_of(function, numbers(n, n))).describe_default() for n in (8, 1024))
    matrix = 4 * 1024 * 1024
    assert small["peak_bytes"] > 50 * 2**20, "torch itself"
    grown = large["peak_bytes"] - small["peak_bytes"]
    assert grown == pytest.approx(2 * matrix, abs=matrix / 4), "the input and the product; the rest is fused"


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda x: x + 1, [numbers(0, 3)], id="no elements"),
        pytest.param(lambda x: x * 2, [torch.tensor(3.0)], id="scalar"),
        pytest.param(lambda x: ((y := x + 1), y, x), [numbers(8)], id="same output twice, input as output"),
        pytest.param(lambda x: (None, x + 1, 3), [numbers(8)], id="None and a number"),
        pytest.param(lambda x: x.exp(), [numbers(64, 1).expand(64, 5)], id="expanded"),
        pytest.param(lambda x: x.exp(), [numbers(64).unfold(0, 3, 1)], id="overlapping"),
        pytest.param(lambda x, y: torch.cat([x + 1, y * 2]), [numbers(3, 4), numbers(5, 4)], id="cat"),
        pytest.param(lambda x: x.sort(), [numbers(3, 16)], id="several outputs of one op"),
        pytest.param(lambda x: x * 2 + 1, [numbers(16).to(torch.complex64)], id="complex"),
        pytest.param(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), [numbers(3)], id="constant"),
        pytest.param(lambda x, m: torch.softmax(x + m, -1), [numbers(8, 8), torch.full((8, 8), float("-inf"))], id="all NaN"),
        pytest.param(lambda x: x.add_(1), [numbers(6, 4)], id="in place"),
    ],
)
def test_odd_graphs_are_compiled_and_agree_with_eager(function, inputs):
    told = session_on(graph_of(function, *inputs)).describe_default()
    assert told["status"] == "ok"
    assert told["error"] <= 1


def test_a_graph_of_which_no_kernel_is_generated_has_no_groups():
    told = session_on(graph_of(lambda x: (x, x.view(-1)), numbers(2, 3))).describe_default()
    assert not told["realised"]
