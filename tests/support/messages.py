"""Hypothesis strategies for every message that crosses between the engine and a worker."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st

from enginebay.messages import (
    AbortWeightUpdate,
    Ack,
    Call,
    CallExtension,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    DeviceReady,
    Envelope,
    ExecuteModel,
    ExtensionAnswered,
    FinishWeightUpdate,
    GrammarOutput,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    KVCacheGroup,
    KVCacheSpec,
    LoadModel,
    MemoryAvailable,
    MemorySnapshot,
    ModelInfo,
    ModelLoaded,
    ModelRunnerOutput,
    NewRequest,
    PluginIdentity,
    PluginsLoaded,
    ProfileWritten,
    PromptLogprobs,
    RankPlace,
    Result,
    ResumedRequest,
    RunningRequest,
    SampleTokens,
    SamplingParams,
    SchedulerOutput,
    SendWeights,
    Shutdown,
    SleepWorker,
    StartPayload,
    StartWeightUpdate,
    StartWorkerProfile,
    StepResult,
    StopWorkerProfile,
    StructuredOutput,
    TensorPiece,
    TokenLogprob,
    ToolSchema,
    WakeWorker,
    WeightsChunk,
    WeightsSent,
    WorkerFailure,
    WorkerInfo,
    WorldPlan,
)

T = TypeVar("T")

INTS = st.integers(-(2**63), 2**64 - 1)
SMALL = st.integers(0, 1 << 20)
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BYTES = st.binary(max_size=20)
ANNEX = st.dictionaries(TEXT, BYTES, max_size=2)
TOKENS = st.lists(SMALL, max_size=8).map(tuple)
BLOCKS = st.lists(TOKENS, max_size=2).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def some(of: st.SearchStrategy[T], most: int = 2) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, max_size=most).map(tuple)


PARAMS = st.builds(
    SamplingParams,
    max_tokens=INTS,
    temperature=FLOATS,
    top_k=INTS,
    top_p=FLOATS,
    min_p=FLOATS,
    seed=st.none() | INTS,
    n=INTS,
    repetition_penalty=FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    logit_bias=st.dictionaries(INTS, FLOATS, max_size=2),
    bad_words=some(TEXT),
    bad_words_token_ids=BLOCKS,
    min_tokens=INTS,
    stop=some(TEXT),
    stop_token_ids=TOKENS,
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
    truncate_prompt_tokens=st.none() | INTS,
    logprobs=st.none() | INTS,
    prompt_logprobs=st.none() | INTS,
    structured=st.none()
    | st.builds(
        StructuredOutput,
        json_schema=st.none() | TEXT,
        regex=st.none() | TEXT,
        ebnf=st.none() | TEXT,
        choice=some(TEXT),
        tools=some(st.builds(ToolSchema, name=TEXT, parameters=TEXT)),
    ),
)
NEW = st.builds(
    NewRequest,
    request_id=TEXT,
    token_ids=TOKENS,
    num_prompt_tokens=INTS,
    params=PARAMS,
    seed=INTS,
    block_ids=BLOCKS,
    num_computed_tokens=INTS,
    choice=INTS,
    extra=ANNEX,
)
RUNNING = st.builds(
    RunningRequest, request_id=TEXT, num_computed_tokens=INTS, new_block_ids=BLOCKS, new_token_ids=TOKENS
)
RESUMED = st.builds(ResumedRequest, request_id=TEXT, token_ids=TOKENS, block_ids=BLOCKS, num_computed_tokens=INTS)
SCHEDULES = st.builds(
    SchedulerOutput,
    step=INTS,
    generation=INTS,
    new=some(NEW),
    running=some(RUNNING),
    resumed=some(RESUMED),
    finished=some(TEXT),
    preempted=some(TEXT),
    num_scheduled_tokens=st.dictionaries(TEXT, INTS, max_size=3),
    annex=ANNEX,
)
CALLS: st.SearchStrategy[Call] = st.one_of(
    st.sampled_from(
        [InitWorker(), InitDevice(), LoadModel(), DetermineAvailableMemory(), CompileOrWarmUpModel(), Shutdown()]
    ),
    st.builds(InitializeKVCache, num_blocks=INTS),
    st.builds(ExecuteModel, scheduler_output=SCHEDULES),
    st.builds(
        SampleTokens,
        grammar_output=st.none() | st.builds(GrammarOutput, request_ids=some(TEXT), bitmask=BYTES, words_per_row=INTS),
    ),
    st.builds(SleepWorker, level=INTS),
    st.builds(WakeWorker, tags=some(TEXT)),
    st.builds(StartWeightUpdate, path=TEXT),
    st.builds(
        WeightsChunk,
        pieces=some(st.builds(TensorPiece, name=TEXT, dtype=TEXT, shape=TOKENS, data=BYTES, offset=INTS)),
    ),
    st.builds(FinishWeightUpdate, version=TEXT),
    st.just(AbortWeightUpdate()),
    st.builds(SendWeights, rendezvous=TEXT),
    st.builds(CallExtension, method=TEXT, payload=BYTES),
    st.builds(StartWorkerProfile, folder=TEXT),
    st.just(StopWorkerProfile()),
)
ENTRIES = st.builds(TokenLogprob, token_id=INTS, logprob=FLOATS, rank=INTS, top=some(st.tuples(INTS, FLOATS)))
OUTPUTS = st.builds(
    ModelRunnerOutput,
    request_ids=some(TEXT),
    sampled_token_ids=BLOCKS,
    faults=st.dictionaries(TEXT, TEXT, max_size=2),
    logprobs=st.dictionaries(TEXT, some(ENTRIES), max_size=2),
    prompt_logprobs=st.dictionaries(TEXT, st.builds(PromptLogprobs, start=INTS, entries=some(ENTRIES)), max_size=2),
    annex=ANNEX,
)
SNAPSHOTS = st.builds(
    MemorySnapshot,
    device=TEXT,
    timestamp=FLOATS,
    total=INTS,
    free=INTS,
    allocated=INTS,
    reserved=INTS,
    peak=INTS,
    process=INTS,
)
WORKERS = st.builds(
    WorkerInfo, rank=INTS, local_rank=INTS, incarnation=TEXT, host=TEXT, pid=INTS, device=TEXT, space=TEXT
)
GROUPS = st.builds(
    KVCacheGroup, layers=TOKENS, block_size=INTS, bytes_per_block=INTS, kind=TEXT, window=st.none() | INTS
)
SPECS = st.builds(KVCacheSpec, groups=some(GROUPS), num_blocks=st.none() | INTS, reserved_blocks=INTS)
IDENTITIES = st.builds(PluginIdentity, kind=TEXT, name=TEXT, package=TEXT, version=TEXT, options=TEXT)
FAILURES = st.builds(
    WorkerFailure,
    phase=TEXT,
    error_type=TEXT,
    message=TEXT,
    traceback=TEXT,
    kind=TEXT,
    rank=INTS,
    host=TEXT,
    pid=INTS,
    signal=INTS,
    last_log_lines=some(TEXT),
)
RESULTS: st.SearchStrategy[Result] = st.one_of(
    st.just(Ack()),
    st.builds(PluginsLoaded, plugins=some(IDENTITIES)),
    st.builds(DeviceReady, worker=WORKERS, snapshot=SNAPSHOTS, requested_bytes=INTS),
    st.builds(
        ModelLoaded,
        kv_cache_spec=SPECS,
        weight_bytes=INTS,
        in_force=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    st.builds(MemoryAvailable, kv_cache_bytes=INTS, free_bytes=INTS),
    st.builds(StepResult, output=st.none() | OUTPUTS, start_ns=INTS, end_ns=INTS),
    st.builds(ExtensionAnswered, value=BYTES),
    st.builds(ProfileWritten, path=TEXT),
    st.builds(WeightsSent, num_bytes=INTS, checksum=TEXT),
    FAILURES,
)
ENVELOPES = st.builds(
    Envelope,
    generation=INTS,
    call_id=INTS,
    payload=BYTES,
    ranks=st.none() | TOKENS,
    deadline=st.none() | FLOATS,
    traceparent=TEXT,
)
PLACES = st.builds(RankPlace, rank=INTS, local_rank=INTS, tensor_rank=INTS, pipeline_rank=INTS, node=INTS)
WORLDS = st.builds(
    WorldPlan,
    ranks=some(PLACES),
    output_rank=INTS,
    devices_per_rank=INTS,
    data_parallel_rank_local=st.none() | INTS,
)
MODELS = st.builds(
    ModelInfo,
    path=TEXT,
    name=TEXT,
    architecture=TEXT,
    model_type=TEXT,
    vocab_size=INTS,
    max_model_len=INTS,
    dtype=TEXT,
    eos_token_ids=TOKENS,
    bos_token_id=st.none() | INTS,
    config=st.dictionaries(TEXT, JSON, max_size=3),
    ignored_generation=st.lists(TEXT, max_size=2).map(tuple),
)
STARTS = st.builds(
    StartPayload,
    incarnation=TEXT,
    generation=INTS,
    place=PLACES,
    world=WORLDS,
    config=TEXT,
    model=MODELS,
    runner=TEXT,
    block_size=INTS,
    max_model_len=INTS,
    max_num_seqs=INTS,
    max_num_batched_tokens=INTS,
    executor_maps_devices=st.booleans(),
    traceparent=TEXT,
    dtype=TEXT,
    cache_dtype=TEXT,
)

CROSSING: dict[str, st.SearchStrategy[Any]] = {
    "call": CALLS,
    "result": RESULTS,
    "envelope": ENVELOPES,
    "start payload": STARTS,
}
"""Strategies by the word with which the codec names what it reads."""
