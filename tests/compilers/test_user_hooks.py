"""A user's own choices handler and passes run also where a plan is served: composed with, never replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from serving import Bench, Example, pointwise_then_sum, realise
from torch._dynamo.utils import counters
from torch._inductor import virtualized
from torch._inductor.choices import InductorChoices
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass
from torch._inductor.virtualized import V

from tuner.compilers.inductor.ambient import ambient, as_keyed
from tuner.compilers.inductor.apply import ForcedGroups, Realised, forced_groups
from tuner.compilers.inductor.hooks import inductor_config, own_choices_handler
from tuner.compilers.inductor.users import option_names, users_choices
from tuner.errors import UnsupportedGraph
from tuner.plan import Groups, Plan
from tuner.search_spaces.fusion import no_fusion


@pytest.fixture(autouse=True)
def no_handler_yet() -> Iterator[None]:
    """Inductor keeps, for the thread, the first handler that it makes of the configured class: no test is to see another's."""
    vars(virtualized.threadlocal).pop(virtualized._choices._key, None)
    yield
    vars(virtualized.threadlocal).pop(virtualized._choices._key, None)


class Handler(InductorChoices):
    """Says how often it was asked, and forbids whatever `forbids` says."""

    def __init__(self, forbids: bool = False, name: str = "handler"):
        self.asked, self.forbids, self.name = 0, forbids, name

    def uuid(self) -> str:
        return f"{self.name} that forbids: {self.forbids}"

    def can_fuse(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:  # type: ignore[override]
        self.asked += 1
        return not self.forbids


class GraphPass(CustomGraphPass):
    def __init__(self, name: str):
        self.name, self.seen = name, 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.seen += 1

    def uuid(self) -> str:
        return self.name


class SchedulerPass(CustomSchedulerPass):
    def __init__(self, name: str):
        self.name, self.seen = name, [0]

    def __call__(self, nodes: list[Any]) -> list[Any]:
        self.seen.append(len(nodes))
        return nodes

    def uuid(self) -> str:
        return self.name


def alone(bench: Bench, example: Example) -> Plan:
    return Plan(groups=no_fusion(realise(bench.resolve(example).graph, Plan())[1]))


def whole(bench: Bench, example: Example) -> Groups:
    """The groups of the default: all in one."""
    return realise(bench.resolve(example).graph, Plan())[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["class", "handler"])
def test_a_users_choices_handler_is_asked_and_its_veto_stays_a_veto(bench: Bench, how: str) -> None:
    example = pointwise_then_sum()
    plan = Plan(groups=whole(bench, example))
    for forbids in (False, True):
        handler = Handler(forbids)
        patch: contextlib.AbstractContextManager[Any] = V.set_choices_handler(handler)
        if how == "class":
            patch = inductor_config.patch(inductor_choices_class=lambda handler=handler: handler)
        with patch:
            bench.settle(example, plan, groups=plan.groups)
            before = handler.asked
            (graph,) = bench.run(example)[1]["served"]
        assert handler.asked > before
        assert (graph.outcome, graph.reason) == (("fallback", "not realised") if forbids else ("served", graph.reason))


def test_a_handler_over_the_users_leaves_him_every_other_choice_and_his_state() -> None:
    class Mine(Handler):
        def reduction_split_factor(self, *_: Any) -> int:  # type: ignore[override]
            return 7

    mine = Mine()
    made = forced_groups((("a",),), Realised({}), "ours", mine)
    assert isinstance(made, Mine)
    assert made.reduction_split_factor() == 7
    assert made.uuid() == "ours"
    made.asked += 3
    assert mine.asked == 3
    assert "tuner_group_of" not in vars(mine)
    assert type(forced_groups((("a",),), Realised({}), "ours", InductorChoices())) is ForcedGroups


@pytest.mark.slow
def test_scheduler_passes_of_the_users_run_around_fusion_and_are_in_the_caches_key(bench: Bench) -> None:
    example = pointwise_then_sum()
    plan = alone(bench, example)
    assert plan.groups is not None
    misses = []
    for name in ("one", "two"):
        before, after = SchedulerPass(f"{name} before"), SchedulerPass(f"{name} after")
        with inductor_config.patch(_pre_fusion_custom_pass=before, _post_fusion_custom_pass=after):
            bench.settle(example, plan, groups=plan.groups)
            (graph,) = bench.run(example)[1]["served"]
        assert (graph.outcome, graph.realised) == ("served", plan.groups)
        assert before.seen[-1] == after.seen[-1] == len(plan.groups)
        misses.append(counters["inductor"]["fxgraph_cache_miss"])
    assert misses == [1, 1]


@pytest.mark.slow
def test_passes_given_as_options_are_composed_with_too(bench: Bench) -> None:
    example, after = pointwise_then_sum(), SchedulerPass("after")
    plan = alone(bench, example)
    with inductor_config.patch(_post_fusion_custom_pass=after):
        bench.settle(example, plan, groups=plan.groups)
    seen = len(after.seen)
    (graph,) = bench.run(example, options={"_post_fusion_custom_pass": after})[1]["served"]
    assert (graph.outcome, graph.realised) == ("served", plan.groups)
    assert len(after.seen) > seen


@pytest.mark.slow
def test_passes_before_the_graph_is_keyed_make_no_other_match_and_passes_after_it_do(bench: Bench) -> None:
    example = pointwise_then_sum()
    bench.settle(example, alone(bench, example))
    early = {"pre_grad_custom_pass": GraphPass("pre"), "joint_custom_pre_pass": [GraphPass("joint"), GraphPass("more")]}
    (graph,) = bench.run(example, options=early)[1]["served"]
    assert (graph.outcome, graph.tier) == ("served", "exact")
    assert early["pre_grad_custom_pass"].seen  # type: ignore[attr-defined]
    assert early["joint_custom_pre_pass"][1].seen  # type: ignore[index]
    (graph,) = bench.run(example, options={"post_grad_custom_post_pass": GraphPass("post")})[1]["served"]
    assert (graph.outcome, graph.tier) == ("default", "default")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"post_grad_custom_post_pass": lambda graph: None},
        {"_post_fusion_custom_pass": lambda nodes: nodes},
        {"inductor_choices_class": type("NoUuid", (InductorChoices,), {})},
    ],
    ids=["a graph pass", "a scheduler pass", "a handler"],
)
def test_what_has_no_uuid_and_changes_code_is_compiled_by_default(bench: Bench, settings: dict[str, Any]) -> None:
    example = pointwise_then_sum()
    bench.settle(example, Plan(config=(("realize_opcount_threshold", 1),)))
    handler: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if made := settings.pop("inductor_choices_class", None):
        # As a class Inductor refuses it by itself; as the thread's handler it takes it.
        handler = lambda: V.set_choices_handler(made())  # noqa: E731
    with inductor_config.patch(settings), handler():
        outputs, report = bench.run(example)
    (program,) = report["served"]
    assert (program.outcome, program.tier, program.winner, program.phase) == ("default", "default", "default", "")
    assert program.program_key
    assert program.reason.startswith("user_hooks: ")
    assert "no uuid()" in program.reason
    assert (report["counts"]["default: user_hooks"], report["counts"]["default"]) == (1, 1)
    torch.testing.assert_close(outputs, example[0](*example[1]))


def test_asking_for_the_users_handler_makes_none() -> None:
    with inductor_config.patch(inductor_choices_class=Handler):
        assert type(kept := users_choices()) is Handler
        assert users_choices() is kept, "it may hold state from one graph to the next"
    assert type(users_choices()) is InductorChoices
    assert own_choices_handler() is None


def test_a_process_that_measures_cannot_take_over_a_users_hooks() -> None:
    with inductor_config.patch(post_grad_custom_post_pass=GraphPass("mine")):
        keyed = ambient()
    with pytest.raises(UnsupportedGraph, match="post_grad_custom_post_pass is the user's own"), as_keyed(keyed):
        pass
    with V.set_choices_handler(Handler()):
        keyed = ambient()
    with pytest.raises(UnsupportedGraph, match="choices handler is the user's own"), as_keyed(keyed):
        pass


def test_option_names_are_read_off_what_compile_fx_makes_of_an_inner_step() -> None:
    import functools

    def inner(*_: Any) -> None:
        pass

    made = functools.partial(inductor_config.patch({"max_autotune": False, "cpp.threads": 2})(inner), compile_region_name=None)
    again = inductor_config.patch({"freezing": False})(made)
    assert option_names(again) == {"max_autotune", "cpp.threads", "freezing"}
    assert option_names(inner) == option_names(None) == frozenset()
