"""The flags of ``vllm serve``, and what each is here: a key, or the reason why there is none.

One table for ``config from-vllm`` and for "did you mean". Names are facts; the words are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from enginebay.config import _vllm_values as values

__all__ = ["FLAGS", "FOREIGN_KEYS", "FOREIGN_REASONS", "SHORT", "Flag"]

Takes = Literal["value", "switch", "values"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``key`` is ours ("cache.block_size"), or "" with ``reason``; ``remark`` stands beside the key.

    ``read`` turns what was written into our value; it raises ``ValueError`` ("must be …") for what cannot be, and
    ``values.NotHere`` for what enginebay has no key for.
    """

    name: str
    takes: Takes = "value"
    key: str = ""
    read: Callable[[str], Any] = str
    reason: str = ""
    remark: str = ""


_KEYED: Final = (
    Flag("model", key="model.path", read=values.path),
    Flag("tokenizer", key="model.tokenizer", read=values.path),
    Flag("served-model-name", "values", key="model.served_model_name"),
    Flag("dtype", key="model.dtype", read=values.dtype),
    Flag("seed", key="model.seed", read=values.seed, remark="of the framework; requests have seeds of their own"),
    Flag("max-model-len", key="model.max_model_len", read=values.model_len),
    Flag("tensor-parallel-size", key="parallel.tensor_parallel_size", read=values.whole),
    Flag("pipeline-parallel-size", key="parallel.pipeline_parallel_size", read=values.whole),
    Flag("data-parallel-size", key="parallel.data_parallel_size", read=values.whole),
    Flag("device", key="device.kind"),
    Flag("distributed-executor-backend", key="executor.use", read=values.executor),
    Flag("scheduling-policy", key="scheduler.use"),
    Flag("max-num-seqs", key="scheduler.max_num_seqs", read=values.whole),
    Flag("max-num-batched-tokens", key="scheduler.max_num_batched_tokens", read=values.size),
    Flag("enable-chunked-prefill", "switch", key="scheduler.chunked_prefill", read=values.switch),
    Flag("long-prefill-token-threshold", key="scheduler.long_prefill_token_threshold", read=values.whole),
    Flag("async-scheduling", "switch", key="scheduler.overlap", read=values.overlap),
    Flag("gpu-memory-utilization", key="cache.memory_utilization", read=values.number),
    Flag("kv-cache-memory-bytes", key="cache.memory_bytes", read=values.size),
    Flag("num-gpu-blocks-override", key="cache.num_blocks", read=values.whole),
    Flag("block-size", key="cache.block_size", read=values.whole),
    Flag("kv-cache-dtype", key="cache.dtype", read=values.cache_dtype),
    Flag("enable-prefix-caching", "switch", key="cache.prefix_caching", read=values.switch),
    Flag("prefix-caching-hash-algo", key="cache.hash", read=values.hash_name),
    Flag("otlp-traces-endpoint", key="telemetry.endpoint", remark="OTLP over HTTP here, as a rule port 4318"),
)

# Reasons, and the flags that they are for: "x+" takes several values, "x!" is a switch, and the others take one value.
_KEYLESS: Final = (
    (
        "[server] is not in this version, which serves no HTTP",
        """
        host port uds api-key+ root-path allowed-origins allowed-methods allowed-headers ssl-keyfile ssl-certfile
        ssl-ca-certs ssl-cert-reqs ssl-ciphers uvicorn-log-level middleware+ response-role api-server-count
        chat-template-content-format default-chat-template-kwargs tool-call-parser tool-parser-plugin tool-server
        reasoning-parser reasoning-parser-plugin h11-max-incomplete-event-size h11-max-header-count max-log-len
        log-config-file disable-access-log-for-endpoints fingerprint-mode fingerprint-value allow-credentials!
        enable-ssl-refresh! headless! enable-auto-tool-choice! exclude-tools-when-tool-choice-none!
        disable-uvicorn-access-log! disable-fastapi-docs! enable-request-id-headers! enable-prompt-tokens-details!
        enable-server-load-tracking! enable-force-include-usage! enable-tokenizer-info-endpoint! log-error-stack!
        return-tokens-as-token-ids! disable-frontend-multiprocessing! tokens-only! enable-offline-docs!
        trust-request-chat-template!
        """,
    ),
    ("refused: enginebay runs no code that comes with a model", "trust-remote-code!"),
    ("the model's own chat template is used, and no other", "chat-template"),
    (
        "nothing is fetched from a hub: what is in the folder that [model] path names is what runs",
        """
        revision code-revision tokenizer-revision download-dir hf-token hf-config-path ignore-patterns
        """,
    ),
    (
        "quantized weights are not run; name a folder of plain safetensors, or a GGUF file, which is dequantized",
        """
        quantization qlora-adapter-name-or-path quantization-param-path
        """,
    ),
    (
        "weights are read from safetensors; a GGUF file is converted once: name it as [model] path",
        """
        load-format model-loader-extra-config safetensors-load-strategy pt-load-map-location config-format
        use-tqdm-on-load!
        """,
    ),
    (
        "the model is run as its config.json says, and refused if it cannot be run exactly",
        """
        hf-overrides rope-scaling rope-theta model-impl override-neuron-config override-attention-dtype task runner
        convert tokenizer-mode tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config
        disable-sliding-window! disable-cascade-attn! skip-tokenizer-init!
        """,
    ),
    (
        "models of text alone are run, and they generate",
        """
        limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb mm-processor-cache-type media-io-kwargs
        mm-encoder-tp-mode mm-encoder-attn-backend mm-shm-cache-max-object-size-mb video-pruning-rate
        allowed-local-media-path allowed-media-domains+ override-pooler-config pooler-config io-processor-plugin
        enable-mm-embeds! enable-prompt-embeds! interleave-mm-strings! skip-mm-profiling! disable-chunked-mm-input!
        disable-mm-preprocessor-cache! language-model-only!
        """,
    ),
    ("runner 'v1' runs eagerly: [runner] use = \"v1\" names it", "enforce-eager!"),
    (
        "how a runner computes is its own options, under [runner.options]: enginebay describe runner NAME",
        """
        compilation-config optimization-level cuda-graph-sizes+ cudagraph-capture-sizes max-cudagraph-capture-size
        max-seq-len-to-capture attention-backend attention-config kernel-config additional-config all2all-backend
        mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size disable-custom-all-reduce! calculate-kv-scales!
        kv-sharing-fast-prefill! enable-dbo!
        """,
    ),
    (
        "an executor, a runner or a scheduler is an installed plugin that is named: enginebay plugins",
        """
        worker-cls worker-extension-cls scheduler-cls logits-processors logits-processor-pattern worker-use-ray!
        """,
    ),
    (
        "one copy of the model on one host is what this version runs, its ranks placed by the executor",
        """
        nnodes node-rank master-addr master-port data-parallel-rank data-parallel-start-rank
        data-parallel-size-local data-parallel-address data-parallel-rpc-port data-parallel-backend
        decode-context-parallel-size eplb-config num-redundant-experts expert-placement-strategy
        max-parallel-loading-workers data-parallel-hybrid-lb! data-parallel-external-lb! enable-expert-parallel!
        enable-eplb! ray-workers-use-nsight!
        """,
    ),
    (
        '[speculation] use = "ngram" is the one kind here, with max_tokens, ngram_min and ngram_max',
        """
        speculative-config speculative-model num-speculative-tokens speculative-draft-tensor-parallel-size
        speculative-max-model-len speculative-disable-by-batch-size ngram-prompt-lookup-max ngram-prompt-lookup-min
        spec-decoding-acceptance-method num-lookahead-slots
        """,
    ),
    (
        "[structured] is not in this version",
        """
        guided-decoding-backend structured-outputs-config guided-decoding-disable-fallback!
        guided-decoding-disable-any-whitespace! guided-decoding-disable-additional-properties!
        """,
    ),
    (
        "adapters are not offered: merge them into the weights",
        """
        lora-modules+ max-loras max-lora-rank max-cpu-loras lora-dtype lora-extra-vocab-size default-mm-loras
        max-prompt-adapters max-prompt-adapter-token enable-lora! enable-lora-bias! fully-sharded-loras!
        enable-prompt-adapter!
        """,
    ),
    ("a preempted request is computed again, and nothing is swapped", "swap-space preemption-mode"),
    (
        "weights and keys stay on the device: there is no offloading in this version",
        """
        cpu-offload-gb kv-offloading-size kv-offloading-backend kv-transfer-config kv-events-config
        ec-transfer-config
        """,
    ),
    ("sleeping is not in this version", "enable-sleep-mode!"),
    (
        "requests carry their own sampling, and what generation_config.json sets is listed by enginebay check",
        """
        generation-config override-generation-config max-logprobs logprobs-mode
        """,
    ),
    (
        "the mechanics that every scheduler has leave no such choice: enginebay describe scheduler NAME",
        """
        max-num-partial-prefills max-long-partial-prefills scheduler-delay-factor num-scheduler-steps
        stream-interval use-v2-block-manager! multi-step-stream-outputs! disable-async-output-proc!
        disable-hybrid-kv-cache-manager!
        """,
    ),
    (
        "nothing is logged of prompts and answers; traces are what tells of requests and steps: [telemetry]",
        """
        show-hidden-metrics-for-version collect-detailed-traces profiler-config disable-log-stats!
        disable-log-requests! enable-log-requests! enable-log-outputs! enable-log-deltas! aggregate-engine-logging!
        """,
    ),
)
_TAKES: Final[dict[str, Takes]] = {"+": "values", "!": "switch"}


def _keyless() -> Iterator[Flag]:
    for reason, names in _KEYLESS:
        for name in names.split():
            yield Flag(name.rstrip("+!"), _TAKES.get(name[-1], "value"), reason=reason)


FLAGS: Final = {flag.name: flag for flag in (*_KEYED, *_keyless())}
"""By name, with dashes and without the leading ones."""

SHORT: Final = {
    "O": "compilation-config",
    "ac": "attention-config",
    "asc": "api-server-count",
    "cc": "compilation-config",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size",
    "dpa": "data-parallel-address",
    "dpb": "data-parallel-backend",
    "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank",
    "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank",
    "n": "nnodes",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
    "r": "node-rank",
    "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}
"""The short forms, without their dash."""

_OTHERS: Final = {
    "attention_backend": "runner.options",
    "chunked_prefill_size": "scheduler.max_num_batched_tokens",
    "context_length": "model.max_model_len",
    "disable_overlap_schedule": "scheduler.overlap",
    "disable_radix_cache": "cache.prefix_caching",
    "dp_size": "parallel.data_parallel_size",
    "max_prefill_tokens": "scheduler.max_num_batched_tokens",
    "max_running_requests": "scheduler.max_num_seqs",
    "mem_fraction_static": "cache.memory_utilization",
    "model_path": "model.path",
    "page_size": "cache.block_size",
    "pipeline_parallel": "parallel.pipeline_parallel_size",
    "pp_size": "parallel.pipeline_parallel_size",
    "random_seed": "model.seed",
    "schedule_policy": "scheduler.use",
    "tensor_parallel": "parallel.tensor_parallel_size",
    "tokenizer_path": "model.tokenizer",
    "tp_size": "parallel.tensor_parallel_size",
}
"""Keys of other engines than vLLM, and ones that people guess."""

FOREIGN_KEYS: Final = {
    **{flag.name.replace("-", "_"): flag.key for flag in FLAGS.values() if flag.key},
    **{short: FLAGS[name].key for short, name in SHORT.items() if FLAGS[name].key},
    **_OTHERS,
}
"""Keys of other engines, with underscores, and what they are here; only ever a suggestion."""

FOREIGN_REASONS: Final = {
    name: flag.reason for flag in FLAGS.values() if flag.reason and (name := flag.name.replace("-", "_")) not in _OTHERS
}
"""Keys of other engines that have none here, and why."""
