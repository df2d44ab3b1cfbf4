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


ENCODING_AT = {"read_text": 0, "write_text": 1, "open": 3, "fdopen": 3, "NamedTemporaryFile": 2, "TemporaryFile": 2}
"""Methods and functions of text, and which positional argument is the encoding; one less for ``Path.open``."""
RUNS = {"Popen", "run", "check_output"}


def unnamed_encodings(tree: ast.Module) -> Iterator[int]:
    """Lines that read or write text in whatever encoding the locale has: the files of a host are UTF-8 everywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(k.arg in ("encoding", None) for k in node.keywords):
            path, _, name = ast.unparse(node.func).rpartition(".")
            if name in RUNS:
                bad = any(k.arg in ("text", "universal_newlines", "errors") for k in node.keywords)
            elif name in ("read_text", "write_text"):  # a function of that name is our own, and has its encoding
                bad = bool(path) and len(node.args) <= ENCODING_AT[name]
            else:
                bad = name in ENCODING_AT and len(node.args) <= ENCODING_AT[name] and _opens_text(node, path, name)
            if bad:
                yield node.lineno


def _opens_text(node: ast.Call, path: str, name: str) -> bool:
    mode = next((k.value for k in node.keywords if k.arg == "mode"), None)
    if name in ("NamedTemporaryFile", "TemporaryFile"):
        mode = mode or next(iter(node.args), None)
        return mode is not None and not _is_binary(mode)
    is_method = name == "open" and path not in ("", "io")  # Path.open; other things open too, by what is no mode
    place = 0 if is_method else 1
    if mode is None and len(node.args) > place:
        mode = node.args[place]
    if is_method:
        return (mode is None and not node.args and not node.keywords) or (_is_mode(mode) and not _is_binary(mode))
    return mode is None or not _is_binary(mode)


def _is_mode(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and set(node.value) <= set("rwxabt+")


def _is_binary(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and "b" in str(node.value)


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


def test_text_has_its_encoding() -> None:
    assert _found(unnamed_encodings, CORE, PLUGINS) == []


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
        (unnamed_encodings, "(root / 'x').read_text().split()"),
        (unnamed_encodings, "path.read_text(errors='replace')"),
        (unnamed_encodings, "path.write_text('x')"),
        (unnamed_encodings, "open(path)"),
        (unnamed_encodings, "open(path, 'w')"),
        (unnamed_encodings, "path.open()"),
        (unnamed_encodings, "path.open(mode='a')"),
        (unnamed_encodings, "os.fdopen(descriptor, 'w')"),
        (unnamed_encodings, "tempfile.TemporaryFile('w+')"),
        (unnamed_encodings, "subprocess.run(command, text=True)"),
    ],
)
def test_each_rule_finds_its_violation(check: Check, code: str) -> None:
    assert list(check(ast.parse(code))) != []


@pytest.mark.parametrize(
    "check", [named_plugins, unbounded_waits, pickles, set_iterations, string_hashes, unnamed_encodings]
)
def test_no_rule_finds_what_is_allowed(check: Check) -> None:
    allowed = """
use: str = "uni"
for x in sorted(set(y)): pass
runtime.wait(future, 1.0)
z = x == "other"
h = hashlib.sha256(b"")
a = numpy.load(file, allow_pickle=False)
t = path.read_text("ascii") + path.read_text(encoding="utf-8") + read_text(path)
b = [open(path, "rb"), path.open("wb"), os.fdopen(descriptor, "rb", buffering=0), tempfile.TemporaryFile()]
g = [gate.open(record), os.open(path, os.O_RDONLY), subprocess.run(command), open(path, encoding="utf-8")]
"""
    assert list(check(ast.parse(allowed))) == []
