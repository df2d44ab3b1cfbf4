"""vLLM's own scheduler alone, fed with made-up tokens: ``schedule()`` and ``update_from_output()`` per step.

Usage: ``PEERS_HOME=… python sched_vllm.py [RUNNING] [WAITING]``, in the environment of vLLM. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

from common import HOME

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

BLOCKS, BLOCK_SIZE, MAX_LEN = 60_000, 16, 8192
WARM_UP, STEPS = 30, 300


def scheduler(running: int) -> Any:
    """A scheduler without a model."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=str(HOME / "models" / "smollm2-135m-bf16"),
        max_num_seqs=running,
        max_num_batched_tokens=MAX_LEN,
        max_model_len=MAX_LEN,
        enable_prefix_caching=True,
        block_size=BLOCK_SIZE,
    ).create_engine_config()
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    config.cache_config.num_gpu_blocks = BLOCKS
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
    )


def add_requests(made: Any, count: int) -> None:
    """Requests of different prompts, which do not end."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for number in range(count):
        made.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=[(number * 7 + place) % 40_000 for place in range(100)],
                sampling_params=SamplingParams(max_tokens=4000, ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
        )


def main() -> None:
    """Measure."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput

    running = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    waiting = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    made = scheduler(running)
    init_none_hash(sha256)
    begin = time.perf_counter()
    add_requests(made, running + waiting)
    add = (time.perf_counter() - begin) / (running + waiting)

    def step() -> None:
        scheduled = made.schedule()
        ids = list(scheduled.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={one: place for place, one in enumerate(ids)},
            sampled_token_ids=[[5] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        made.update_from_output(scheduled, result)

    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    told = {
        "peer": f"vllm {version('vllm-cpu')}",
        "running": running,
        "waiting": waiting,
        "add_us": round(add * 1e6, 1),
        "step_us_median": round(statistics.median(times) * 1e6, 1),
        "step_us_p99": round(sorted(times)[int(STEPS * 0.99) - 1] * 1e6, 1),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
