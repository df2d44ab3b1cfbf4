"""Tracing a named module: its nodes, code that stands alone, and errors that say what to do."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.errors import GraphError
from enginebay.graph import code_text, ir_text, node_rows, trace

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.param = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(x + self.param).clamp(min=0.0, max=1.0)

class Endless(nn.Module):
    def forward(self, x):
        return nn.functional.pad(x.clamp(max=float("inf")), (1, 1)).to(torch.device("cpu"), torch.float64)

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Net() for _ in range(2))

    def forward(self, x):
        return self.layers[1].linear(self.layers[0].linear(x)[:, :4]), x

class Wide(nn.Module):
    def __init__(self, width, height=1, *more, **others):
        super().__init__()

class Choosing(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

class Broken(nn.Module):
    def __init__(self):
        raise ValueError("no width")

function = torch.relu
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "traced_nets.py").write_text(SOURCE)
    (folder / "traced_raises.py").write_text("raise RuntimeError('on import')\n")
    (folder / "traced_needs.py").write_text("import not_there_at_all\n")
    yield folder
    for name in [name for name in sys.modules if name.startswith("traced_")]:
        sys.modules.pop(name)


def refusal(named: str, *folders: Path) -> str:
    with pytest.raises(GraphError) as caught:
        trace(named, folders=folders)
    return str(caught.value)


def loaded(code: str, folder: Path) -> Any:
    """The code as a file of its own, imported."""
    file = folder / "generated.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("generated", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parameter_linear_clamp_has_the_nodes_that_it_should(folder: Path) -> None:
    graph_module = trace("traced_nets:Net", folders=[folder])
    rows = [(row.opcode, row.name, row.target, row.args) for row in node_rows(graph_module)]
    assert rows == [
        ("placeholder", "x", "x", ""),
        ("get_attr", "param", "param", ""),
        ("call_function", "add", "operator.add", "x, param"),
        ("call_module", "linear", "linear", "add"),
        ("call_method", "clamp", "clamp", "linear, min=0.0, max=1.0"),
        ("output", "output", "output", "clamp"),
    ]
    assert ir_text(graph_module).splitlines()[1].strip() == "%x : [num_users=1] = placeholder[target=x]"


@pytest.mark.parametrize("name", ["Net", "Endless", "Deep"])
def test_the_code_is_a_file_that_gives_the_same(folder: Path, tmp_path: Path, name: str) -> None:
    graph_module = trace(f"traced_nets:{name}", folders=[folder])
    module = importlib.import_module("traced_nets")
    torch.manual_seed(0)
    original, x = getattr(module, name)(), torch.rand(3, 4)
    forward = loaded(code_text(graph_module), tmp_path).forward
    given = (x,) if name == "Endless" else (original, x)  # what has no weights needs no module
    torch.testing.assert_close(forward(*given), original(x), rtol=0, atol=0)


def test_modules_that_bring_operators_are_imported_by_the_code(folder: Path) -> None:
    graph_module = trace("traced_nets:Net", folders=[folder])
    assert code_text(graph_module, imports=["my_ops"]).splitlines()[0] == "import my_ops"


def test_a_wrong_name_is_told_with_what_there_is(folder: Path) -> None:
    known = "It has: Net, Endless, Deep, Wide, Choosing, Broken"
    assert refusal("traced_nets:Nett", folder) == f"module traced_nets has no class Nett. Did you mean 'Net'? {known}"
    assert refusal("traced_nets:function", folder) == (
        f"module traced_nets has no torch.nn.Module class of the name function. {known}"
    )
    assert refusal("json:loads") == (
        "module json has no torch.nn.Module class of the name loads. It has no torch.nn.Module class at all."
    )
    for wrong in ("traced_nets", "traced_nets.Net", "traced nets:Net", "traced_nets:", "os:system()"):
        assert refusal(wrong, folder) == (
            f"{wrong!r} names no class: package.module:Class is expected, as in my_models.small:Net"
        )


def test_the_working_directory_is_named_or_not_looked_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")  # as in an interactive session
    assert refusal("traced_nets:Net") == (
        "there is no module traced_nets: Python finds no traced_nets. traced_nets.py is in the working directory, "
        "where nothing is looked for unless it is named: --path ."
    )
    assert trace("traced_nets:Net", folders=[Path()]) is not None
    assert "" in sys.path, "and nothing of the path has changed"


def test_what_cannot_be_imported_says_why_and_where(folder: Path) -> None:
    assert refusal("traced_no_such.module:Net") == (
        "there is no module traced_no_such.module: Python finds no traced_no_such. Is its package installed here? "
        "A folder to look in is named with --path FOLDER."
    )
    assert refusal("traced_raises:Net", folder) == (
        "importing traced_raises raised RuntimeError: on import "
        f"({folder}/traced_raises.py:1, in <module>: raise RuntimeError('on import'))"
    )
    assert refusal("traced_needs:Net", folder) == (
        "module traced_needs needs the module not_there_at_all, which is not installed "
        f"({folder}/traced_needs.py:1, in <module>: import not_there_at_all)"
    )
    assert refusal("traced_nets:Net", folder / "none") == f"there is no folder {folder / 'none'} to import from"


def test_constructor_arguments_are_told(folder: Path) -> None:
    assert refusal("traced_nets:Wide", folder) == (
        "traced_nets:Wide is made with width, and only a class without such arguments can be traced: derive one that "
        "sets them, as in class Mine(Wide): def __init__(self): super().__init__(…)"
    )
    assert refusal("traced_nets:Broken", folder) == (
        "making traced_nets:Broken raised ValueError: no width "
        f'({folder}/traced_nets.py:38, in __init__: raise ValueError("no width"))'
    )


def test_what_cannot_be_traced_says_where(folder: Path) -> None:
    said = refusal("traced_nets:Choosing", folder)
    assert said.startswith("traced_nets:Choosing cannot be traced: TraceError: ")
    assert said.endswith(f" ({folder}/traced_nets.py:32, in forward: if x.sum() > 0:)")
