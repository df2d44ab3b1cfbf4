"""llama.cpp: a llama-server of this run's own on the loopback address, parallel slots.

All prompts of a workload go in one request (a list of token-id lists), so HTTP costs little.
LLAMA_BIN is the folder with llama-server (default: PEERS_HOME/llamacpp/bin).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path

from common import HOME, THREADS, main, parser

ap = parser(__doc__, ["q4_1", "q4_0", "q8_0", "bf16", "f32"])
ap.add_argument("--slots", type=int, default=64)
ap.add_argument("--ubatch", type=int, default=512)
ap.add_argument("--ctx-per-slot", type=int, default=520)
ap.add_argument("--extra", default="", help="more llama-server options, split on blanks")
args = ap.parse_args()

BIN = Path(os.environ.get("LLAMA_BIN", HOME / "llamacpp" / "bin"))
START_S, ANSWER_S = 120, 600


class LlamaServer:
    """Greedy answers of exact lengths."""

    def __init__(self, a: argparse.Namespace) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        slots = 1 if a.workload in ("W1", "first") else a.slots
        command = [
            *(BIN / "llama-server", "-m", HOME / "models" / "gguf" / f"{a.model}-{a.precision}.gguf"),
            *("--host", "127.0.0.1", "--port", self._port, "-t", THREADS, "-tb", THREADS),
            *("-np", slots, "-c", slots * a.ctx_per_slot, "-b", 2048, "-ub", a.ubatch, "--no-warmup"),
            *a.extra.split(),
        ]
        with open(HOME / "llama-server.log", "w") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, env={**os.environ, "LD_LIBRARY_PATH": str(BIN)}
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._is_up():
            if self._process.poll() is not None:
                raise SystemExit(f"llama-server ended: {self._process.returncode}")
            if time.monotonic() > deadline:
                self.close()
                raise SystemExit(f"llama-server was not up within {START_S} s")
            time.sleep(0.005)

    def _is_up(self) -> bool:
        try:
            line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
            line.request("GET", "/health")
            return line.getresponse().status == 200
        except OSError:
            return False

    def _post(self, prompt: list[int] | list[list[int]], n: int, stream: bool) -> http.client.HTTPResponse:
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        body = {
            "prompt": prompt,
            "n_predict": n,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["temperature"],
            "stream": stream,
            "return_tokens": True,
            "cache_prompt": args.workload == "W4",
        }
        line.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        return line.getresponse()

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        times: list[float] = []
        for event in self._post(prompt, n, True):
            if event.startswith(b"data: "):
                new = json.loads(event.removeprefix(b"data: ")).get("tokens", [])
                times += [time.perf_counter()] * len(new)
                ids += new
        return ids[:n], times[:n]

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        answers = json.loads(self._post(prompts, n, False).read())
        if isinstance(answers, dict) and len(prompts) == 1 and "tokens" in answers:
            answers = [answers]
        if isinstance(answers, dict):
            raise SystemExit(str(answers))
        return [answer["tokens"] for answer in sorted(answers, key=lambda one: one["index"])]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    main(
        "llama.cpp-server",
        os.environ.get("LLAMA_VERSION", "?"),
        LlamaServer,
        args,
        {"slots": args.slots, "ubatch": args.ubatch, "extra": args.extra},
    )
