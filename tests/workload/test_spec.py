"""A SPEC names a function of a file; whatever is wrong with it is one line that says so."""

from __future__ import annotations

import sys

import pytest
import torch

from tuner.errors import SpecError
from tuner.workload.graph import is_stored_key
from tuner.workload.spec import load, load_spec

HEAD = "import sys\nimport torch\n"
GOOD = HEAD + "def made():\n    return torch.exp, (torch.ones(3),)\n"


@pytest.fixture
def spec(tmp_path):
    def written(source: str, name: str = "made") -> str:
        (tmp_path / "workloads.py").write_text(source)
        return f"{tmp_path / 'workloads.py'}:{name}"

    return written


def test_a_spec_gives_a_callable_and_its_inputs(spec):
    function, inputs = load_spec(spec(GOOD))
    assert torch.equal(function(*inputs), torch.ones(3).exp())


def test_a_single_input_needs_no_tuple(spec):
    assert len(load_spec(spec(GOOD.replace("(torch.ones(3),)", "torch.ones(3)")))[1]) == 1


def test_the_inputs_are_not_written_by_the_trial_run(spec):
    source = HEAD + "def made():\n    return (lambda x: x.add_(1)), (torch.ones(3),)\n"
    assert torch.equal(load_spec(spec(source))[1][0], torch.ones(3))


def test_a_file_may_import_its_neighbours_also_when_it_is_called(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_the_spec.py").write_text("SIZE = 5\n")
    late = GOOD.replace("def made():\n", "def made():\n    from neighbour_of_the_spec import SIZE\n").replace(
        "ones(3)", "ones(SIZE)"
    )
    assert "import SIZE" in late
    assert load_spec(spec(late))[1][0].shape == (5,)


BROKEN = {
    "does not parse": "def made(:\n",
    "does not import": "import no_such_module_anywhere\n",
    "quits when imported": HEAD + "sys.exit(0)\n",
    "no such function": HEAD,
    "not a function": HEAD + "made = 3\n",
    "raises": HEAD + "def made():\n    raise ValueError('first\\nsecond')\n",
    "quits": HEAD + "def made():\n    sys.exit(0)\n",
    "returns nothing": HEAD + "def made():\n    pass\n",
    "returns four": HEAD + "def made():\n    return torch.exp, (torch.ones(3),), {}, 1\n",
    "returns no callable": HEAD + "def made():\n    return torch.ones(3), (torch.ones(3),)\n",
    "returns no tensors": HEAD + "def made():\n    return abs, (3,)\n",
    "fails in eager mode": HEAD + "def made():\n    return torch.mm, (torch.ones(3, 4), torch.ones(3, 4))\n",
    "quits in eager mode": HEAD + "def made():\n    return (lambda x: sys.exit(0)), (torch.ones(3),)\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_told_in_one_line(spec, name):
    with pytest.raises(SpecError, match=r"workloads\.py") as caught:
        load_spec(spec(BROKEN[name]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("torch.exp, torch.ones(3), torch.ones(3), 1", "a tuple of 4 (builtin_function_or_method, Tensor, Tensor, int)"),
        ("(torch.exp,)", "a tuple of 1 (builtin_function_or_method)"),
        ("torch.ones(3), torch.exp", "a tuple of 2 (Tensor, builtin_function_or_method)"),
        ("[0] * 100", "a list of 100 (int, int, int, int, int, int, …)"),
        ("()", "a tuple of 0"),
        ("None", "NoneType"),
    ],
)
def test_what_was_returned_and_what_is_wanted_are_both_told(spec, returned, told):
    with pytest.raises(SpecError) as caught:
        load_spec(spec(HEAD + f"def made():\n    return {returned}\n"))
    assert f"made() returned {told}; wanted are two: a callable, and a tuple of its example inputs" in str(caught.value)


@pytest.mark.parametrize("text", ["nowhere.py:made", "workloads.py", ":made", "workloads.py:", "", "/:made"])
def test_what_names_no_function_of_a_file_is_refused(text):
    with pytest.raises(SpecError):
        load_spec(text)


def test_a_stored_key_is_told_from_a_file():
    assert is_stored_key("85288dbb54b9")
    assert is_stored_key("ab" * 32)
    assert not any(map(is_stored_key, ["", "85288", "xyzxyz", "ab" * 33, "a.py:f", "ABCDEF"]))


def test_a_third_value_names_the_sizes_that_vary(spec):
    body = "import torch\ndef made():\n    return torch.relu, (torch.ones(2, 3),), "
    assert load(spec(body + "{'batch': [(0, 0)]}\n")).dims == {"batch": ((0, 0),)}
    assert load_spec(spec(body + "{'batch': [(0, 0)]}\n"))[1][0].shape == (2, 3)
    for wrong in ("{'batch': 0}", "[0]", "{'batch': [(0,)]}", "{'batch': [('a', 0)]}"):
        with pytest.raises(SpecError, match="is no dict of names of sizes"):
            load(spec(body + wrong + "\n"))
