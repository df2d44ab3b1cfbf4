"""Makes workers for tests: a payload, a runner that writes down what it is asked, a host that offers it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from enginebay.config import EngineConfig
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ModelRunner, NoOptions, RunnerCapabilities, RunnerContext, RunnerPlugin
from enginebay.messages import (
    FinishWeightUpdate,
    GrammarOutput,
    KVCacheGroup,
    KVCacheSpec,
    ModelRunnerOutput,
    RankPlace,
    SchedulerOutput,
    StartPayload,
    StartWeightUpdate,
    WeightsChunk,
    WorldPlan,
)
from enginebay.plugins import PluginHost
from enginebay.testing.fakes import fake_model

LOG: list[str] = []
"""What the last scripted runner was asked, shared with the device of the same test."""

BEHAVIOUR: dict[str, Any] = {}
"""What its methods return or raise: a value, or a function of the argument."""


class ScriptedRunner(ModelRunner[NoOptions]):
    """Writes every call into ``LOG`` and behaves as ``BEHAVIOUR`` says."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        LOG.append(f"runner {context.dtype}/{context.cache_dtype} on {context.device.name()}")

    def load_model(self) -> None:
        self._do("load_model")

    def kv_cache_spec(self) -> KVCacheSpec:
        LOG.append("kv_cache_spec")
        group = KVCacheGroup(layers=(0,), block_size=16, bytes_per_block=1 << 20)
        return KVCacheSpec(groups=(group,), num_blocks=BEHAVIOUR.get("num_blocks"))

    def profile_run(self) -> None:
        self._do("profile_run")

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self._do("initialize_kv_cache", num_blocks)

    def warm_up(self) -> None:
        self._do("warm_up")

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        return self._do("execute_model", scheduler_output, log=False)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        return self._do("sample_tokens", grammar_output, log=False)

    def in_force(self) -> dict[str, str]:
        return {"attention": "none"}

    def sleep(self, level: int) -> None:
        self._do("sleep", level)

    def wake_up(self, tags: frozenset[str]) -> None:
        self._do("wake_up", " ".join(sorted(tags)))

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        self._do("start_weight_update", update.path or None)

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        self._do("update_weights_chunk", " ".join(piece.name for piece in chunk.pieces))

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        self._do("finish_weight_update", finish.version or None)

    def abort_weight_update(self) -> None:
        self._do("abort_weight_update")

    def close(self) -> None:
        self._do("close")

    def _do(self, name: str, argument: Any = None, *, log: bool = True) -> Any:
        LOG.append(f"{name} {argument}" if log and argument is not None else name)
        behaviour = BEHAVIOUR.get(name)
        if isinstance(behaviour, BaseException):
            raise behaviour
        return behaviour(argument) if callable(behaviour) else behaviour


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[NoOptions]]:
    """The scripted runner."""
    return [
        RunnerPlugin(
            name="scripted",
            factory=ScriptedRunner,
            capabilities=RunnerCapabilities(devices=BEHAVIOUR.get("devices", ("cpu", "cuda"))),
        )
    ]


def scripted_host() -> PluginHost:
    """A plugin host that offers the scripted runner and nothing else."""
    return PluginHost(entry_points=[EntryPoint("scripted", "support.workers", "enginebay.runners")])


def payload(*, place: RankPlace | None = None, world: WorldPlan | None = None, **config: Any) -> StartPayload:
    """A start payload for the scripted runner, with these sections of the config."""
    return StartPayload(
        incarnation="w0-abc",
        generation=3,
        place=place or RankPlace(),
        world=world or WorldPlan(),
        config=EngineConfig(**config).model_dump_json(),
        model=fake_model(),
        runner="scripted",
        block_size=16,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )


def output(*ids: str, tokens: int = 1) -> ModelRunnerOutput:
    """One token for each id."""
    return ModelRunnerOutput(request_ids=ids, sampled_token_ids=tuple((tokens,) for _ in ids))
