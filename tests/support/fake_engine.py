"""An engine without a model: a core over a synchronous executor, and a runner and a model folder for whole engines.

Token i is byte i; 256 opens a message and 257, the end of sequence, closes it. What a request is answered is the
text that stands in ``SCRIPTS`` under the first words of its prompt, else ``DEFAULT`` over and over.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace as replace_fields
from pydantic import Field

from enginebay.engine.admission.admit import AdmissionLimits, Ask
from enginebay.engine.commit import DetokenizerFactory
from enginebay.engine.core import EngineCore
from enginebay.engine.grammars import Grammars
from enginebay.engine.parts import CoreParts
from enginebay.engine.replies import Generation
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    BatchConstraints,
    Executor,
    ExecutorContext,
    ExecutorHealth,
    ModelRunner,
    NoOptions,
    Options,
    Policy,
    Propose,
    RequestView,
    RunnerCapabilities,
    RunnerContext,
    RunnerPlugin,
    Scheduler,
    SchedulerContext,
    SchedulerLimits,
    StartResult,
    StartSpec,
)
from enginebay.kvcache import KVCacheManager
from enginebay.messages import (
    Envelope,
    ExecuteModel,
    GrammarOutput,
    KVCacheGroup,
    KVCacheSpec,
    ModelRunnerOutput,
    RankReply,
    Replies,
    RequestOutput,
    RequestSummary,
    SampleTokens,
    SamplingParams,
    SchedulerOutput,
    StepReport,
    StepResult,
    StructuredOutput,
    TokenLogprob,
)
from enginebay.runtime import Runtime, system_runtime
from enginebay.scheduling import MechanicsScheduler, check_fits
from enginebay.transport import decode_call, encode, unwrap
from enginebay.worker import HostDevice, RequestTable, ScheduledRow
from enginebay.worker.failure import describe_failure
from support.fake_grammars import FakeCompiler, a_store
from support.fake_life import FakeLife, read_weights
from support.fake_logprobs import told_of
from support.rosters import a_roster

BOS, EOS, VOCAB = 256, 257, 258
DEFAULT = "the quick brown fox jumps over the lazy dog. "


def text_token(prompt: Sequence[int], num_output: int, choice: int = 0) -> int:
    """The token after ``num_output`` tokens of answer: bytes of ``DEFAULT``, or of what the prompt asks for.

    A prompt with ``say:`` is answered with the text after its last ``say:``, and then the end; ``%`` in it is the
    number of the choice.
    """
    asked = bytes(t for t in prompt if t < BOS)
    _, marker, said = asked.rpartition(b"say:")
    said = said.partition(b"\n")[0].replace(b"%", str(choice).encode())
    if marker:
        return said[num_output] if num_output < len(said) else EOS
    return DEFAULT.encode()[num_output % len(DEFAULT)]


def answer_of(prompt: Sequence[int], most: int = 200) -> str:
    """All that ``text_token`` answers, up to the end or so many tokens."""
    tokens = [text_token(prompt, index) for index in range(most)]
    return bytes(tokens[: tokens.index(EOS)] if EOS in tokens else tokens).decode()


FEATURES = frozenset(
    {"top_k", "top_p", "min_p", "seed", "n", "penalties", "logit_bias", "bad_words", "min_tokens"}
    | {"logprobs", "prompt_logprobs", "batch_invariant", "grammar"}
)
"""All that a runner can declare."""

Draw = Callable[[ScheduledRow], tuple[int, ...]]


def draw_text(one: ScheduledRow) -> tuple[int, ...]:
    """One token of ``text_token``."""
    row = one.row
    prompt = row.token_ids[: row.num_prompt_tokens]
    return (text_token(prompt, len(row.token_ids) - row.num_prompt_tokens, row.choice),)


def masks_of(grammar: GrammarOutput | None, request_id: str) -> list[int]:
    """A request's masks as numbers, whose bit i is token i: one for each position that is drawn."""
    if grammar is None:
        return []
    size = 4 * grammar.words_per_row
    at = [size * index for index, one in enumerate(grammar.request_ids) if one == request_id]
    return [int.from_bytes(grammar.bitmask[begin : begin + size], "little") for begin in at]


def within(mask: int, token: int) -> int:
    """The token if the mask allows it, else the first that it does."""
    return token if mask >> token & 1 else (mask & -mask).bit_length() - 1


class FakeExecutor(Executor[NoOptions]):
    """Answers every step at once, in the caller's thread, through the real codec.

    ``draw`` is asked for each row that samples, and again for each proposal that holds; what a mask forbids gives way
    to the first token that it allows. ``before`` is called with each schedule, and may raise; ``faults`` maps request
    ids to what is wrong with them. ``calls`` has ("execute" or "sample", step) of each call, in order.
    """

    def __init__(self, context: ExecutorContext[NoOptions], draw: Draw = draw_text) -> None:
        super().__init__(context)
        self.table = RequestTable()
        self.draw = draw
        self.before: Callable[[SchedulerOutput], None] = lambda output: None
        self.faults: dict[str, str] = {}
        self.reply_generation: int | None = None
        self.steps: list[SchedulerOutput] = []
        self.calls: list[tuple[str, int]] = []
        self.masks: list[GrammarOutput | None] = []
        self.keep_steps = True
        self.stopped = 0
        self.step = -1
        self._scored: tuple[int, list[ScheduledRow]] | None = None

    def start(self, spec: StartSpec) -> StartResult:
        return StartResult(workers=())

    def submit(self, envelope: Envelope) -> Future[Replies]:
        future: Future[Replies] = Future()
        call = decode_call(envelope.payload)
        try:
            assert isinstance(call, (ExecuteModel, SampleTokens))
            if isinstance(call, ExecuteModel):
                self.step = call.scheduler_output.step
            output = self._step(call)
            payload = encode(StepResult(output=output, step=self.step))
        except Exception as error:
            payload = encode(describe_failure(error, phase="execute_model", rank=0))
        generation = envelope.generation if self.reply_generation is None else self.reply_generation
        reply = RankReply(rank=0, payload=payload)
        future.set_result(Replies(generation=generation, call_id=envelope.call_id, replies=(reply,)))
        return future

    def _step(self, call: ExecuteModel | SampleTokens) -> ModelRunnerOutput | None:
        if self.keep_steps:
            self.calls.append(("sample" if isinstance(call, SampleTokens) else "execute", self.step))
        if isinstance(call, SampleTokens):
            assert self._scored is not None, "sample_tokens came without a step that waits for its masks"
            _, rows = self._scored
            self._scored = None
            self.masks.append(call.grammar_output)
            return self._finish(rows, call.grammar_output)
        output = call.scheduler_output
        if self._scored is not None and self._scored[0] == output.generation:
            raise AssertionError(f"step {output.step} came before the masks of the step before it")
        self._scored = None
        if self.keep_steps:
            self.steps.append(output)
        rows = self.table.begin_step(output)
        self.before(output)
        if output.constrained:
            self._scored = output.generation, rows
            return None
        return self._finish(rows, None)

    def _finish(self, rows: list[ScheduledRow], grammar: GrammarOutput | None) -> ModelRunnerOutput:
        faults = {
            one.row.request_id: self.faults[one.row.request_id] for one in rows if one.row.request_id in self.faults
        }
        drawn = {one.row.request_id: self._draw(one, grammar) for one in rows if one.samples}
        logprobs, prompt_logprobs = told_of(rows, {k: () if k in faults else ids for k, ids in drawn.items()})
        return self.table.finish_step(drawn, faults, logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    def _draw(self, one: ScheduledRow, grammar: GrammarOutput | None) -> tuple[int, ...]:
        masks = masks_of(grammar, one.row.request_id)
        if not one.draft_token_ids and not masks:
            return self.draw(one)
        drawn: list[int] = []
        for depth in range(1 + len(one.draft_token_ids)):
            row = replace_fields(one.row, token_ids=[*one.row.token_ids, *drawn])
            token = self.draw(ScheduledRow(row, 1, True))[0]
            drawn.append(token if not masks else within(masks[depth], token))
            if one.draft_token_ids[depth : depth + 1] != (drawn[-1],):
                break
        return tuple(drawn)

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=True)

    def stop(self, deadline: float) -> None:
        self.stopped += 1


class Arrival(Policy[NoOptions]):
    """First come, first served."""

    def key(self, request: RequestView) -> tuple[int, ...]:
        return (request.arrival_number,)


class Watcher:
    """Keeps what the hooks were told."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.summaries: list[RequestSummary] = []
        self.stopped = 0
        self.keep = True

    def step_finished(self, report: StepReport) -> None:
        if self.keep:
            self.steps.append(report)

    def request_finished(self, summary: RequestSummary) -> None:
        if self.keep:
            self.summaries.append(summary)

    def engine_stopped(self) -> None:
        self.stopped += 1


class Bytes:
    """A detokenizer of bytes."""

    def __init__(self, skip_special_tokens: bool = True) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(t for t in token_ids if t < BOS))

    def ahead(self, length: int) -> str:
        return ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeEngine:
    """A core with its parts in reach.

    ``constrained``: every request draws under a grammar, which allows what it is answered anyway.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 128,
        features: frozenset[str] = frozenset({"top_k", "top_p", "seed"}),
        policy: type[Policy[NoOptions]] = Arrival,
        scheduler: Callable[[SchedulerContext[NoOptions]], Scheduler[NoOptions]] | None = None,
        propose: Propose | None = None,
        num_stages: int = 1,
        max_draft_tokens: int = 4,
        constrained: bool = False,
        detokenizer: DetokenizerFactory = Bytes,
        draw: Draw = draw_text,
        runtime: Runtime | None = None,
        **parts: Any,
    ) -> None:
        self.runtime = runtime or system_runtime(seed=1)
        self.generation = Generation()
        self.constrained = constrained
        if constrained:
            features = features | {"grammar"}
            parts.setdefault("grammars", Grammars(a_store(FakeCompiler())))
        context = ExecutorContext(
            options=NoOptions(),
            runtime=self.runtime,
            encode=encode,
            unwrap=unwrap,
            next_call_id=self.generation.next_call_id,
            generation=lambda: self.generation.current,
        )
        self.executor = FakeExecutor(context, draw)
        self.executor.table.limit_blocks(num_blocks, [block_size], [None])
        self.hooks = Watcher()
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len
        )
        self.kv: KVCacheManager
        """The cache of the scheduler that is in force."""

        def make() -> Scheduler[NoOptions]:
            self.kv = KVCacheManager(num_blocks=num_blocks, block_size=block_size)
            scheduling = SchedulerContext(
                options=NoOptions(),
                limits=limits,
                constraints=BatchConstraints(max_tokens_per_step=1 if propose is None else 1 + max_draft_tokens),
                kv=self.kv.view(),
                kv_cache=self.kv,
                now=self.runtime.clock.now,
                propose=propose,
                num_stages=num_stages,
            )
            return MechanicsScheduler(policy(scheduling), scheduling) if scheduler is None else scheduler(scheduling)

        def fits(num_prompt_tokens: int, max_tokens: int) -> None:
            check_fits(num_prompt_tokens, max_tokens, limits, self.kv)

        self.parts = CoreParts(
            executor=self.executor,
            make_scheduler=make,
            runtime=self.runtime,
            hooks=self.hooks,
            limits=AdmissionLimits(
                vocab_size=VOCAB,
                runner="runner 'fake' 1.0",
                features=features,
                check_fits=fits,
                max_model_len=max_model_len,
                bad_word_ids=lambda word: (tuple(word.encode()), tuple(f" {word}".encode())),
            ),
            detokenizer=detokenizer,
            model="fake-model",
            scheduler_name="scheduler 'fake' 1.0",
            runner_name="runner 'fake' 1.0",
            executor_name="executor 'fake' 1.0",
            eos_token_ids=frozenset({EOS}),
            max_model_len=max_model_len,
            generation=self.generation,
            in_force={},
            roster=a_roster(self.runtime),
        )
        self.core = EngineCore(replace(self.parts, **parts))
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.texts: dict[str, str] = {}
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, RequestOutput] = {}

    def add(
        self, request_id: str, prompt: str | Sequence[int] = "hi", ask: dict[str, Any] | None = None, **params: Any
    ) -> None:
        """Admit a request; ``params`` are sampling parameters, ``ask`` other fields of it."""
        ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
        if self.constrained:
            params.setdefault("structured", StructuredOutput(choice=(answer_of(ids),)))
        self.core.add_request(
            Ask(request_id=request_id, prompt_token_ids=ids, params=SamplingParams(**params), **(ask or {}))
        )

    def step(self) -> list[RequestOutput]:
        """One step; outputs are added up, and their offsets checked: gapless and unique.

        The second choice of request "a" is "a/1" in what is kept, the first is "a".
        """
        outputs, _ = self.core.step()
        for output in outputs:
            name = f"{output.request_id}/{output.choice}" if output.choice else output.request_id
            tokens = self.tokens.setdefault(name, [])
            assert output.offset == len(tokens), f"{name}: offset {output.offset}, expected {len(tokens)}"
            tokens.extend(output.token_ids)
            self.logprobs.setdefault(name, []).extend(output.logprobs)
            self.prompt_logprobs.setdefault(name, []).extend(output.prompt_logprobs)
            self.texts[name] = self.texts.get(name, "") + output.text
            if output.finish_reason is not None:
                assert name not in self.last, f"{name} ends twice"
                self.last[name] = output
        return outputs

    def run(self, most: int = 10_000) -> None:
        """Steps until nothing is left."""
        for _ in range(most):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"work is left after {most} steps")

    def answer(self, prompt: str | Sequence[int] = "hi", **params: Any) -> tuple[str, RequestOutput]:
        """The whole text of one request, and its last output."""
        request_id = f"r{len(self.last)}"
        self.add(request_id, prompt, **params)
        self.run()
        return self.texts[request_id], self.last[request_id]


def engine_of(**parts: Any) -> FakeEngine:
    """A ``FakeEngine`` whose runner declares all."""
    return FakeEngine(features=FEATURES, **parts)


class FakeOptions(Options):
    """How the fake runner behaves."""

    step_seconds: Annotated[float, Field(ge=0, description="How long each step takes.")] = 0.0
    burn_seconds: Annotated[float, Field(ge=0, description="Processor seconds that each step takes.")] = 0.0
    fail: Annotated[str, Field(description="Name of the method that raises.")] = ""
    hold: Annotated[str, Field(description="Name of the method that does not return.")] = ""
    announce: Annotated[int, Field(ge=0, description="Seconds that each step asks for; 0: none.")] = 0


class FakeExtra(Options):
    """What the fake runner takes in a request's ``extra``; it does nothing with it."""

    mood: Annotated[str, Field(description="Any.")] = "calm"
    level: Annotated[int, Field(ge=0, le=9)] = 0


class FakeRunner(FakeLife, ModelRunner[FakeOptions]):
    """``text_token`` as a whole runner. A prompt with ``fault`` fails alone, one with ``crash`` fails the step, and of
    one with ``poison`` the process dies."""

    def __init__(self, context: RunnerContext[FakeOptions]) -> None:
        FakeLife.__init__(self)
        ModelRunner.__init__(self, context)
        self.table = RequestTable()
        self.rows: list[ScheduledRow] = []
        self._check("__init__")

    def _check(self, method: str) -> None:
        if self.context.options.fail == method:
            raise ValueError(f"asked to fail in {method}")
        if self.context.options.hold == method:
            time.sleep(3600)

    def load_model(self) -> None:
        self._check("load_model")
        self.number = read_weights(Path(self.context.model.path))

    def kv_cache_spec(self) -> KVCacheSpec:
        group = KVCacheGroup(layers=(0,), block_size=self.context.block_size, bytes_per_block=1024)
        return KVCacheSpec(groups=(group,))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self._check("initialize_kv_cache")
        self.table.limit_blocks(num_blocks, [self.context.block_size], [None])
        self.cache = True

    def warm_up(self) -> None:
        self._check("warm_up")

    def in_force(self) -> dict[str, str]:
        return {"attention": "none at all"}

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        rows = self.rows = self.table.begin_step(scheduler_output)
        if self.context.options.announce:
            self.context.announce(self.context.options.announce)
        time.sleep(self.context.options.step_seconds)
        until = time.thread_time() + self.context.options.burn_seconds
        while time.thread_time() < until:
            pass
        prompts = {one.row.request_id: bytes(t for t in one.row.token_ids if t < BOS) for one in rows}
        if any(b"crash" in prompt for prompt in prompts.values()):
            raise ValueError("asked to crash")
        if any(b"poison" in prompt for prompt in prompts.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        return None if scheduler_output.constrained else self.sample_tokens(None)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        rows = self.rows
        prompts = {one.row.request_id: bytes(t for t in one.row.token_ids if t < BOS) for one in rows}
        faults = {request_id: "logits are NaN" for request_id, prompt in prompts.items() if b"fault" in prompt}
        drawn = {one.row.request_id: draw_text(one) for one in rows if one.samples}
        drawn = {k: tuple(map(self.spoken, v)) for k, v in drawn.items() if k not in faults}
        for request_id in drawn:
            if masks := masks_of(grammar_output, request_id):
                drawn[request_id] = (within(masks[0], drawn[request_id][0]),)
        logprobs, prompt_logprobs = told_of(rows, drawn)
        return self.table.finish_step(drawn, faults, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The fake runner."""
    return [
        RunnerPlugin(
            name="fake",
            options=FakeOptions,
            factory=FakeRunner,
            capabilities=RunnerCapabilities(
                features=frozenset({"seed", "n", "min_tokens", "logprobs", "prompt_logprobs", "grammar"}),
                sleep=True,
                update_weights=True,
            ),
            request_extra=FakeExtra,
            device=lambda kind: HostDevice(),
            supports=lambda model: None if model.model_type == "fake" else "it only runs fake models",
        )
    ]


TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def fake_model_folder(folder: Path, *, chat: bool = True, max_model_len: int = 512) -> Path:
    """A model folder for the fake runner: a byte tokenizer, a chat template, one tensor."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from enginebay.text._pieces import BYTE_OF

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_OF), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["FakeForCausalLM"],
        "model_type": "fake",
        "vocab_size": VOCAB,
        "max_position_embeddings": max_model_len,
        "eos_token_id": EOS,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    if chat:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    return folder


def fake_site(folder: Path) -> Path:
    """A folder that, on ``sys.path``, makes the fake runner an installed plugin; for other processes."""
    info = folder / "fake_runner-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-runner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[enginebay.runners]\nfake = support.fake_engine\n")
    return folder


def fake_config(model: Path, **options: Any) -> dict[str, Any]:
    """The config of a whole engine over the fake runner."""
    return {
        "model": {"path": str(model)},
        "runner": {"use": "fake", "options": options},
        "cache": {"num_blocks": 256},
    }
