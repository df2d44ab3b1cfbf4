"""What every ``run_<peer>.py`` shares: arguments, workloads, timing, one JSON line.

A peer gives a factory ``make(args)`` that returns a ``Peer``; ``reset`` (empties the prefix cache) and ``close`` are
called where it has them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

HOME = Path(os.environ.get("PEERS_HOME", "peers-home"))
THREADS = int(os.environ.get("PEERS_THREADS", "2"))
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, str(THREADS))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

WARM_UP = 16
"""Prompts of the warm-up, at most."""
HEAD = 16
"""Ids of the first answer that are told, to compare peers by."""
SAMPLE_S = 0.1
"""Between two looks at the memory of a process tree."""


class Peer(Protocol):
    """An engine that has started."""

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """``n`` tokens for each prompt, all submitted at once."""

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        """``n`` tokens, and when each came (``time.perf_counter``)."""


def parser(doc: str | None, precisions: Sequence[str]) -> argparse.ArgumentParser:
    """The arguments of all peers; the first precision is the default."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--workload", required=True, choices=["W1", "W2", "W3", "W4", "W5", "first"])
    made.add_argument("--precision", default=precisions[0], choices=precisions)
    made.add_argument("--repeats", type=int, default=3, help="timed runs after the warm-up")
    made.add_argument(
        "--prime", action="store_true", help="send the first prompt alone, then the others (W4: fills the prefix cache)"
    )
    made.add_argument("--model", default="smollm2-135m", help="name under PEERS_HOME/models")
    return made


def model_dir(args: argparse.Namespace) -> str:
    """The folder of the model in this precision."""
    return str(HOME / "models" / f"{args.model}-{args.precision}")


def tree_rss(root: int) -> int:
    """Sum of the resident bytes of ``root`` and all its descendants."""
    children: dict[int, list[int]] = {}
    rss: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it ended while we looked
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            rss[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += rss.get(pid, 0)
        todo += children.get(pid, [])
    return total


def cold_start(argv: Sequence[str]) -> tuple[dict[str, float], list[int]]:
    """Start this script anew: its time to the first token with its peak memory, and the token."""
    begin = time.perf_counter()
    child = subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_S):
            peak[0] = max(peak[0], tree_rss(child.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    first, ids = None, []
    for line in child.stdout:
        if line.startswith("FIRST") and first is None:
            first = time.perf_counter() - begin
            ids = json.loads(line.removeprefix("FIRST"))
    child.wait()
    total = time.perf_counter() - begin
    stop.set()
    watcher.join()
    if first is None:
        raise SystemExit(f"child failed with {child.returncode}")
    return {"first_token_s": first, "exit_s": total, "peak_rss_mb": peak[0] / 2**20}, ids


def _one(engine: Peer, prompt: list[int], n: int) -> tuple[dict[str, float], list[list[int]]]:
    begin = time.perf_counter()
    ids, times = engine.stream(prompt, n)
    between = [later - earlier for earlier, later in pairwise(times)]
    row = {
        "ttft_s": times[0] - begin,
        "itl_ms": 1e3 * statistics.median(between),
        "decode_tok_s": (n - 1) / (times[-1] - times[0]),
        "tok_s": n / (times[-1] - begin),
        "total_s": times[-1] - begin,
    }
    return row, [ids]


def _many(engine: Peer, prompts: list[list[int]], n: int, prime: bool) -> tuple[dict[str, float], list[list[int]]]:
    begin = time.perf_counter()
    answers = engine.generate(prompts[:1], n) if prime else []
    answers += engine.generate(prompts[len(answers) :], n)
    seconds = time.perf_counter() - begin
    row = {
        "total_s": seconds,
        "out_tok_s": sum(map(len, answers)) / seconds,
        "prompt_tok_s": sum(map(len, prompts)) / seconds,
    }
    return row, answers


def _measure(
    engine: Peer, workload: Mapping[str, Any], args: argparse.Namespace
) -> tuple[list[dict[str, float]], list[int]]:
    """The rows of the warm-up and of each timed run, and the first ids of the last one's first answer."""
    n, rows, head = workload["max_tokens"], [], []
    for number in range(args.repeats + 1):
        prompts = workload["sets"][number % len(workload["sets"])]
        if number == 0:
            prompts = prompts[:WARM_UP]
        if hasattr(engine, "reset"):
            engine.reset()
        if args.workload == "W1":
            row, answers = _one(engine, prompts[0], n)
        else:
            row, answers = _many(engine, prompts, n, args.prime)
        assert len(answers) == len(prompts), (len(answers), len(prompts))
        short = [len(answer) for answer in answers if len(answer) != n]
        if short:
            print("WRONG LENGTHS", short[:8], file=sys.stderr)
        rows.append({**row, "made": sum(map(len, answers))})
        head = answers[0][:HEAD]
    return rows, head


def main(
    peer: str,
    version: str,
    make: Callable[[argparse.Namespace], Peer],
    args: argparse.Namespace,
    settings: Mapping[str, object] | None = None,
) -> None:
    """Run the workload and print its JSON line; ``first`` is the new process of W5."""
    work = json.loads((HOME / "workloads.json").read_text())
    workload = args.workload
    if workload == "first":
        engine = make(args)
        ids, _ = engine.stream(work["W5"]["sets"][0][0], 1)
        print("FIRST", json.dumps(ids), flush=True)
        if hasattr(engine, "close"):
            engine.close()
        return
    if workload == "W5":
        argv = [sys.argv[0]] + ["first" if word == "W5" else word for word in sys.argv[1:]]
        starts = [cold_start(argv) for _ in range(args.repeats + 1)]
        rows, head, head_set = [row for row, _ in starts], starts[-1][1], 0
    else:
        engine = make(args)
        rows, head = _measure(engine, work[workload], args)
        head_set = args.repeats % len(work[workload]["sets"])
        if hasattr(engine, "close"):
            engine.close()
    told = {
        "peer": peer,
        "version": version,
        "precision": args.precision,
        "workload": workload,
        "threads": THREADS,
        **{name: round(statistics.median(row[name] for row in rows[1:]), 5) for name in rows[0]},
        "all": [{name: round(value, 4) for name, value in row.items()} for row in rows],
        "head": head,
        "head_set": head_set,
        "settings": {**(settings or {}), "prime": args.prime},
        "load": os.getloadavg()[0],
    }
    print(json.dumps(told), flush=True)
