"""A pod and the two verbs of the Kubernetes API that the sink speaks: GET the pod, PATCH its status."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/api/v1/namespaces/models/pods/engine-0"
THEIRS = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


class PodApi:
    """``pod`` as the API has it. ``calls``: the verbs that came; ``patches``: the bodies. ``before_patch``: what others
    do meanwhile, once each; ``fails``: statuses for the next calls, instead of what they ask for."""

    def __init__(self) -> None:
        self.url = ""
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """A new pod, to which nothing has been written."""
        self.calls: list[str] = []
        self.patches: list[dict[str, Any]] = []
        self.before_patch: list[Callable[[], None]] = []
        self.fails: list[int] = []
        self.pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "engine-0", "namespace": "models", "uid": "uid-1", "resourceVersion": "1"},
            "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
            "status": {"phase": "Running", "conditions": [dict(THEIRS)]},
        }

    def changed(self) -> None:
        """Another resourceVersion."""
        meta = self.pod["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)

    def conditions(self) -> dict[str, dict[str, Any]]:
        """The pod's conditions by type."""
        return {one["type"]: one for one in self.pod["status"]["conditions"]}

    def answer(self, verb: str, path: str, kind: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        self.calls.append(verb)
        if self.fails:
            return self.fails.pop(0), {"kind": "Status", "message": "it was told to"}
        if (verb, path) == ("GET", PATH):
            return 200, self.pod
        if (verb, path) != ("PATCH", f"{PATH}/status"):
            return (404 if verb == "GET" else 405), {"kind": "Status"}
        if kind != "application/strategic-merge-patch+json":
            return 415, {"kind": "Status"}
        if self.before_patch:
            self.before_patch.pop(0)()
        patch = json.loads(body)
        self.patches.append(patch)
        for key, value in patch["metadata"].items():  # what a patch does not name is no condition of it
            if value != self.pod["metadata"][key]:
                return 409, {"kind": "Status", "reason": "Conflict"}
        merged = self.conditions()
        for one in patch["status"]["conditions"]:
            merged[one["type"]] = merged.get(one["type"], {}) | one
        self.pod["status"]["conditions"] = list(merged.values())
        self.changed()
        return 200, self.pod


class _Handler(BaseHTTPRequestHandler):
    api: PodApi

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        with self.api.lock:
            path, _, _ = self.path.partition("?")
            status, answer = self.api.answer(self.command, path, self.headers["Content-Type"] or "", body)
            content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PATCH = do_DELETE = do_PUT = do_POST = _any  # noqa: N815  # the names that the library calls

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def pod_api() -> Iterator[PodApi]:
    """The API on a free port of this host."""
    api = PodApi()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
