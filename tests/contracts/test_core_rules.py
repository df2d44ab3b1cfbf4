"""Rules of the core that a linter cannot say, read from the syntax trees of its sources."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.repository import CORE, PLUGINS, pyproject, sources

BUILT_IN = {name for entries in pyproject()["project"]["entry-points"].values() for name in entries}
WORDS = {"http", "memory"}  # the names of sinks that are words for much else
NAMES = (BUILT_IN | {"mp", "ray", "external_launcher", "v2", "priority", "fair"}) - WORDS
SIMULATED = [CORE / name for name in ("engine", "scheduling", "kvcache")]
FRONT_ENDS = {"client.py", "llm.py", "async_llm.py", "async_llm_control.py"}

Check = Callable[[ast.Module], Iterator[int]]


def named_plugins(tree: ast.Module) -> Iterator[int]:
    """Lines that compare something with a plugin's name, or match on one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Subscript):  # {"uni": Uni}[name] and TABLE["uni"] choose by name too
            operands = [node.slice, *(node.value.keys if isinstance(node.value, ast.Dict) else [])]
        else:
            continue
        for operand in operands:
            parts = operand.elts if isinstance(operand, (ast.Tuple, ast.List, ast.Set)) else [operand]
            if any(isinstance(p, ast.Constant) and p.value in NAMES for p in parts):
                yield node.lineno if not isinstance(node, ast.MatchValue) else node.value.lineno


def unbounded_waits(tree: ast.Module) -> Iterator[int]:
    """Lines that call ``.result(…)`` themselves: waits have deadlines, through ``runtime.wait``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "result":
            yield node.lineno


PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def pickles(tree: ast.Module) -> Iterator[int]:
    """Lines that import a pickler, allow numpy to pickle, or load with torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bad = any(alias.name.split(".")[0] in PICKLES for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            bad = (node.module or "").split(".")[0] in PICKLES
        elif isinstance(node, ast.Call):
            allows = any(k.arg == "allow_pickle" and not _is_false(k.value) for k in node.keywords)
            bad = allows or ast.unparse(node.func) in ("torch.load", "torch.save")
        else:
            bad = False
        if bad:
            yield node.lineno


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def set_iterations(tree: ast.Module) -> Iterator[int]:
    """Lines that iterate over what is plainly a set: its order differs between processes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and _is_set(node.iter):
            yield node.iter.lineno
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("list", "tuple", "next", "iter", "enumerate")
            and any(_is_set(a) for a in node.args)
        ):
            yield node.lineno


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub)):
        return _is_set(node.left) or _is_set(node.right)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("set", "frozenset")


def string_hashes(tree: ast.Module) -> Iterator[int]:
    """Lines that call the built-in ``hash``: for strings it differs between processes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            yield node.lineno


def _found(check: Check, *folders: Path, without: frozenset[str] = frozenset()) -> list[str]:
    return [f"{path}:{line}" for path, tree in sources(*folders) if path.name not in without for line in check(tree)]


def test_the_core_tests_no_plugins_name() -> None:
    assert _found(named_plugins, CORE) == []


def test_core_waits_have_deadlines() -> None:
    assert _found(unbounded_waits, *SIMULATED, without=frozenset(FRONT_ENDS)) == []


def test_nothing_pickles() -> None:
    assert _found(pickles, CORE, PLUGINS) == []


def test_order_never_comes_from_a_set() -> None:
    assert _found(set_iterations, *SIMULATED) == []


def test_no_hash_of_strings() -> None:
    assert _found(string_hashes, *SIMULATED) == []


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (named_plugins, "if config.executor.use == 'uni': pass"),
        (named_plugins, "if name in ('x', 'v1'): pass"),
        (named_plugins, "match name:\n    case 'fcfs': pass"),
        (named_plugins, "{'uni': 1}[name]"),
        (unbounded_waits, "future.result()"),
        (pickles, "import pickle"),
        (pickles, "from cloudpickle import dumps"),
        (pickles, "numpy.load(file, allow_pickle=True)"),
        (pickles, "torch.load(file)"),
        (set_iterations, "for x in {1, 2}: pass"),
        (set_iterations, "[x for x in set(y)]"),
        (set_iterations, "list(set(a) - b)"),
        (string_hashes, "hash('a')"),
    ],
)
def test_each_rule_finds_its_violation(check: Check, code: str) -> None:
    assert list(check(ast.parse(code))) != []


@pytest.mark.parametrize("check", [named_plugins, unbounded_waits, pickles, set_iterations, string_hashes])
def test_no_rule_finds_what_is_allowed(check: Check) -> None:
    allowed = """
use: str = "uni"
for x in sorted(set(y)): pass
runtime.wait(future, 1.0)
z = x == "other"
h = hashlib.sha256(b"")
a = numpy.load(file, allow_pickle=False)
"""
    assert list(check(ast.parse(allowed))) == []
