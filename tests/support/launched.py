"""What runs under torchrun in tests: a runner that any world can have, two schedulers, and scenarios in a row.

``python -m torch.distributed.run … -m support.launched FOLDER MODEL SCENARIO …`` writes ``FOLDER/RANK.json``: what each
scenario came to. The last one's error is not caught, where it is ``last``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from enginebay import LLM
from enginebay.errors import EnginebayError
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    ModelRunner,
    NoOptions,
    Options,
    Policy,
    RequestView,
    RunnerCapabilities,
    RunnerContext,
    RunnerPlugin,
    SchedulerCapabilities,
    SchedulerPlugin,
)
from enginebay.messages import KVCacheGroup, KVCacheSpec, ModelRunnerOutput, SamplingParams, SchedulerOutput
from enginebay.worker import HostDevice, RequestTable
from support.marks import with_marks
from support.repository import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
"""The command that starts two ranks of what follows."""

RANK = int(os.environ.get("RANK", "0"))
EXAMPLE = ROOT / "examples" / "torchrun_generate.py"
EXAMPLE_PROMPTS = ["w1 w2 w3", "w7 w8 w9 w10", "w5"]
PROMPTS = [f"prompt {index}" for index in range(32)]


class LaunchedOptions(Options):
    """How the runner behaves."""

    collective: Annotated[bool, Field(description="Sum a vector of the step's size over the tensor group.")] = False


class _Host(HostDevice):
    def collective_backend(self) -> str:
        return "gloo"


class LaunchedRunner(ModelRunner[LaunchedOptions]):
    """Answers each request with the digits of its seed."""

    def __init__(self, context: RunnerContext[LaunchedOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()

    def load_model(self) -> None:
        """There is none."""

    def kv_cache_spec(self) -> KVCacheSpec:
        group = KVCacheGroup(layers=(0,), block_size=self.context.block_size, bytes_per_block=1024)
        return KVCacheSpec(groups=(group,))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """There is none."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        rows = self.table.begin_step(scheduler_output)
        if self.context.options.collective:
            import torch
            import torch.distributed as dist

            summed = torch.ones(scheduler_output.total_num_scheduled_tokens)
            dist.all_reduce(summed, group=self.context.groups.tensor)
            assert summed.eq(len(self.context.world.ranks)).all()
        drawn = {}
        for one in rows:
            if one.samples:
                digits, num = f"{one.row.seed:020d}", len(one.row.token_ids) - one.row.num_prompt_tokens
                drawn[one.row.request_id] = (ord(digits[num % len(digits)]),)
        return self.table.finish_step(drawn)


class Biased(Policy[NoOptions]):
    """The last first, on rank 1 alone: its author has promised too much."""

    def key(self, request: RequestView) -> tuple[int]:
        return (-request.arrival_number if RANK == 1 else request.arrival_number,)


class Lottery(Policy[NoOptions]):
    """Promises no order."""

    def key(self, request: RequestView) -> tuple[int]:
        return (request.arrival_number,)


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[LaunchedOptions]]:
    """The runner."""
    return [
        RunnerPlugin(
            name="launched",
            options=LaunchedOptions,
            factory=LaunchedRunner,
            capabilities=RunnerCapabilities(tensor_parallel=True, pipeline_parallel=True, features=frozenset({"seed"})),
            device=lambda kind: _Host(),
            supports=lambda model: None if model.model_type == "fake" else "it only runs fake models",
        )
    ]


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[NoOptions]]:
    """The schedulers."""
    promised = SchedulerCapabilities(deterministic_order=True)
    return [
        SchedulerPlugin(name="biased", options=NoOptions, factory=Biased, capabilities=promised),
        SchedulerPlugin(name="lottery", options=NoOptions, factory=Lottery),
    ]


def site(folder: Path) -> Path:
    """A folder that, on ``sys.path``, makes these plugins installed ones."""
    info = folder / "launched-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launched\nVersion: 1.0\n")
    ours, marks = "support.launched", "support.marks"
    groups = {
        "runners": {"launched": ours},
        "schedulers": {"biased": ours, "lottery": ours},
        "worker_extensions": {"marks": marks},
    }
    (info / "entry_points.txt").write_text(
        "".join(
            f"[enginebay.{group}]\n" + "".join(f"{name} = {module}\n" for name, module in names.items())
            for group, names in groups.items()
        )
    )
    return folder


def config(model: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A config of two tensor ranks; ``sections`` are merged into it."""
    whole: dict[str, dict[str, Any]] = {
        "model": {"path": model},
        "executor": {"use": "external_launcher"},
        "runner": {"use": "launched"},
        "parallel": {"tensor_parallel_size": 2},
        "cache": {"num_blocks": 256},
    }
    for name, section in sections.items():
        whole[name] = whole.get(name, {}) | section
    return whole


SAMPLED = SamplingParams(temperature=1.0, max_tokens=20)
LONG = SamplingParams(max_tokens=8)


def same(model: str) -> Any:
    """A batch whose answers are the seeds that each rank drew, over real collectives, with an owner's or our world."""
    import torch.distributed as dist

    before = dist.is_initialized()
    with LLM(config(model, runner={"options": {"collective": True}}, engine={"compare_every": 3})) as llm:
        texts = [one.text for one in llm.generate(PROMPTS, SAMPLED)]
        stream = llm.stream("alone", SAMPLED)
        texts.append(stream.completion().text)
        return {
            "texts": texts,
            "request_id": stream.request_id,
            "steps": llm.stats().steps,
            "world": [before, dist.is_initialized()],
        }


def left(model: str) -> Any:
    """Whether there is a world after its engine."""
    import torch.distributed as dist

    return dist.is_initialized()


def owned(model: str) -> Any:
    """An engine in a world that the program has made, and uses after it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    texts = same(model)["texts"]
    ours = torch.ones(1)
    dist.all_reduce(ours)
    dist.destroy_process_group()
    return {"sum": ours.item(), "num": len(texts)}


def blocks(model: str) -> Any:
    """Ranks with caches of different sizes."""
    with LLM(config(model, cache={"num_blocks": 64 - 16 * RANK})) as llm:
        return llm.in_force["kv_blocks"]


def terms(model: str) -> Any:
    """Ranks with different configs."""
    LLM(config(model, scheduler={"max_num_seqs": 4 + RANK}))


def fails(model: str) -> Any:
    """One rank's cache holds nothing: its start fails, and the other's does not wait for ever."""
    sizes = {"num_blocks": None, "memory_bytes": 1 if RANK == 1 else 1 << 20}
    LLM(config(model, cache=sizes))


def timed(model: str) -> Any:
    """A request that should end by the clock."""
    with LLM(config(model)) as llm:
        llm.generate("a", timeout=5.0)


def differ(model: str) -> Any:
    """Schedules that come to differ at the third step, when a rank takes another request from the queue."""
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 8}
    with LLM(config(model, scheduler={"use": "biased", **limits})) as llm:
        llm.generate(PROMPTS[:1], LONG)
        llm.generate([[1] * 3, [2] * 4, [3] * 5], LONG)


def torn(model: str) -> Any:
    """Rank 0 aborts a request in the middle, and rank 1 waits for it in a collective."""
    whole = config(model, runner={"options": {"collective": True}}, deadlines={"collective": 5.0, "stop": 30.0})
    with LLM(whole) as llm:
        stream = llm.stream("alone", SamplingParams(max_tokens=400))
        for _ in stream:
            if RANK == 0:
                stream.close()
                llm.generate("another", LONG)


def alone(model: str) -> Any:
    """Only rank 0 has something to ask."""
    with LLM(config(model)) as llm:
        if RANK == 0:
            llm.generate("a", LONG)


def marked(model: str) -> Any:
    """What a worker extension says of the worker that it is in."""
    with LLM(with_marks(config(model), mark="seen")) as llm:
        return [json.loads(told) | {"here": os.getpid()} for told in llm.collective_rpc("marks.where")]


def split(model: str) -> Any:
    """The tiny model beside the fake one: over tensor ranks, and over stages, greedy and with seeds."""
    texts = []
    for kind in ("tensor_parallel_size", "pipeline_parallel_size"):
        whole = {
            "model": {"path": f"{model}-tiny", "dtype": "float32"},
            "executor": {"use": "external_launcher"},
            "parallel": {kind: 2},
        }
        with LLM(whole) as llm:
            texts.append(tiny_answers(llm))
    return texts


def example(model: str) -> Any:
    """The example program, as it is; what it prints is torchrun's output."""
    sys.argv = [str(EXAMPLE), *EXAMPLE_PROMPTS]
    given = {"ENGINEBAY__MODEL__PATH": f"{model}-tiny", "ENGINEBAY__MODEL__DTYPE": "float32"}
    os.environ.update(given)
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        for name in given:
            del os.environ[name]


def tiny_answers(llm: LLM) -> list[str]:
    """What a tiny model answers."""
    prompts = [" ".join(f"w{(7 * index + word) % 199}" for word in range(1 + index)) for index in range(8)]
    params = SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, temperature=1.0, seed=5)
    return [one.text for each in params for one in llm.generate(prompts, each)]


SCENARIOS: dict[str, Callable[[str], Any]] = {
    one.__name__: one
    for one in (same, left, owned, marked, split, example, blocks, terms, fails, timed, differ, torn, alone)
}


def main(folder: Path, model: str, names: list[str]) -> None:
    """Run the scenarios; the error of each is what it came to."""
    told: dict[str, Any] = {}
    for name in names:
        begun = time.monotonic()
        try:
            if name == "last":
                differ(model)
            told[name] = SCENARIOS[name](model)
        except EnginebayError as error:
            if name == "last":
                raise
            told[name] = {"error": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
        print(f"rank {RANK}: {name} took {time.monotonic() - begun:.1f} s", file=sys.stderr)
        (folder / f"{RANK}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
