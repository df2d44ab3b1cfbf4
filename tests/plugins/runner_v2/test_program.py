"""``Program`` runs a record as its calls say, names the node that fails, and refuses what is no record."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch

from support.kernel_kinds import ops

__all__: list[str] = []


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def node(name: str, op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "args": list(args), "kwargs": kwargs}


def program(nodes: list[dict[str, Any]], outputs: list[str], *, constants: tuple[str, ...] = ()) -> Any:
    record = {"format": 1, "inputs": ["x"], "constants": list(constants), "nodes": nodes, "outputs": outputs}
    return torch.classes.enginebay.Program(json.dumps(record))


X = torch.arange(12.0).view(3, 4)


def test_calls_with_every_kind_of_argument() -> None:
    made = program(
        [
            node("rows", "aten::sym_size.int", ref("x"), 0),
            node("more", "int:add", ref("rows"), 5),
            node("less", "int:sub", ref("more"), 10),
            node("third", "int:floordiv", ref("less"), 2),
            node("six", "int:mul", ref("third"), -6),
            node("wide", "aten::view", ref("x"), [ref("six"), 2]),
            node("cat", "aten::cat", [ref("wide"), ref("wide")], 1),
            node("half", "aten::to.dtype", ref("cat"), {"dtype": "bfloat16"}),
            node("zero", "aten::zeros", [2], dtype={"dtype": "int64"}, device={"device": "cpu"}),
            node("scaled", "aten::mul.Scalar", ref("half"), 2),
            node("added", "aten::add.Tensor", ref("scaled"), ref("scaled"), alpha=0.5),
            node("parts", "aten::split.Tensor", ref("cat"), 4),
            node("first", "getitem", ref("parts"), 0),
            node("both", "enginebay::add_rms_norm", ref("first"), ref("first"), ref("w"), 1e-5, 0),
            node("normed", "getitem", ref("both"), 0),
            node("sum", "getitem", ref("both"), 1),
        ],
        ["added", "zero", "sum", "normed", "w"],
        constants=("w",),
    )
    weight = torch.full((4,), 2.0)
    made.bind({"w": weight})
    added, zero, total, normed, same = made.run([X])
    wide = torch.cat((X.view(6, 2), X.view(6, 2)), 1)
    assert torch.equal(added, (wide * 3).bfloat16())
    assert torch.equal(zero, torch.zeros(2, dtype=torch.int64))
    assert torch.equal(total, wide[:4] * 2)
    assert torch.equal(normed, ops.rms_norm(total, weight, 1e-5, 0))
    assert same.data_ptr() == weight.data_ptr()
    assert made.calls()[0] == "rows aten::sym_size.int"
    assert len(made.profile([X])) == 16


def test_numbers_that_json_lacks() -> None:
    made = program([node("y", "aten::full_like", ref("x"), {"float": "-inf"})], ["y"])
    assert torch.equal(made.run([X])[0], torch.full_like(X, float("-inf")))


def test_a_number_may_stand_for_a_tensor() -> None:
    made = program([node("y", "aten::mul.Tensor", ref("x"), 2), node("z", "aten::add.Tensor", ref("y"), 0.5)], ["z"])
    half = X.bfloat16()
    assert torch.equal(made.run([half])[0], half * 2 + 0.5)


def test_what_is_bound_is_no_input_and_may_be_bound_again() -> None:
    made = program([node("y", "aten::mul.Tensor", ref("x"), ref("w"))], ["y"], constants=("w",))
    with pytest.raises(ValueError, match="constant 'w' is not bound"):
        made.run([X])
    with pytest.raises(ValueError, match="the program has no input or constant 'v'"):
        made.bind({"v": X})
    made.bind({"w": torch.tensor(2.0)})
    assert made.inputs() == ["x"]
    assert torch.equal(made.run([X])[0], X * 2)
    made.bind({"w": torch.tensor(3.0), "x": X})
    assert made.inputs() == []
    assert torch.equal(made.run([])[0], X * 3)
    with pytest.raises(ValueError, match="the step takes 0 inputs, and got 1"):
        made.run([X])


def test_an_operator_that_raises_names_its_node() -> None:
    made = program([node("bad_product", "aten::mm", ref("x"), ref("x"))], ["bad_product"])
    with pytest.raises(RuntimeError, match=r"node bad_product \(aten::mm\): .*cannot be multiplied"):
        made.run([X])


def test_values_go_after_their_last_use() -> None:
    steps = [node(f"n{i}", "aten::add.Scalar", ref(f"n{i - 1}" if i else "x"), 1.0) for i in range(20)]
    made = program(steps, ["n19"])
    big = torch.zeros(1 << 20)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        out = made.run([big])[0]
    assert torch.equal(out, big + 20)
    alive, peak = 0, 0
    for event in sorted((e for e in profile.events() if e.name == "[memory]"), key=lambda e: e.time_range.start):
        alive += event.cpu_memory_usage if hasattr(event, "cpu_memory_usage") else event.self_cpu_memory_usage
        peak = max(peak, alive)
    assert peak <= 3 * big.numel() * 4


def test_other_threads_run_meanwhile() -> None:
    made = program([node(f"n{i}", "aten::mm", ref(f"n{i - 1}" if i else "x"), ref("x")) for i in range(60)], ["n59"])
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(200):  # while the call holds the lock on Python, nothing is counted: its share shows it
            before = counted[0]
            made.run([torch.zeros(300, 300)])
            if counted[0] > before + 10_000:
                break
        else:
            pytest.fail("nothing was counted while a step ran")
    finally:
        stop.set()
        thread.join()


GOOD = {"format": 1, "inputs": ["x"], "constants": [], "nodes": [], "outputs": ["x"]}
REFUSED = {
    "text": ("[1,", "the record is no JSON: it ends early at 3"),
    "word": ("nan", "an unknown word at 0"),
    "rest": ("{} {}", "something after its end at 3"),
    "deep": ("[" * 100, "nested too deeply"),
    "twice": ('{"a": 1, "a": 2}', "a member twice"),
    "format": ({"format": 2}, "the record is of another format than 1"),
    "missing": ({"nodes": None}, 'the record has no "nodes", or it is of another kind'),
    "names": ({"constants": ["x"]}, "the record names two things 'x'"),
    "output": ({"outputs": ["y"]}, "nothing is named 'y', and it is an output"),
    "later": ({"nodes": [node("a", "aten::neg", ref("a"))]}, r"node a \(aten::neg\): nothing before it is named 'a'"),
    "operator": ({"nodes": [node("a", "aten::no")]}, "there is no operator aten::no"),
    "argument": ({"nodes": [node("a", "aten::neg", "one")]}, "an argument is no Tensor"),
    "few": ({"nodes": [node("a", "aten::neg")]}, "it has no argument self"),
    "many": ({"nodes": [node("a", "aten::neg", ref("x"), 1)]}, "it has more arguments than its operator"),
    "unknown": ({"nodes": [node("a", "aten::neg", ref("x"), b=1)]}, "it has an argument that its operator has not"),
    "number": ({"nodes": [node("a", "aten::to.dtype", ref("x"), {"float": "inf"})]}, "an argument is no int"),
    "dtype": ({"nodes": [node("a", "aten::to.dtype", ref("x"), {"dtype": "x"})]}, "unknown dtype 'x'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_record_is_refused(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        torch.classes.enginebay.Program(change if isinstance(change, str) else json.dumps(GOOD | change))
