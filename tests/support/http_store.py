"""A server of records for the HTTP sink: GET, PUT and DELETE by address, with ETags, and faults on demand."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Kept(NamedTuple):
    """A body and its ETag."""

    body: bytes
    tag: str


class Seen(NamedTuple):
    """A request that came."""

    method: str
    path: str
    authorization: str | None
    condition: str


class HttpStore:
    """``kept`` by path, ``seen`` what came. ``reset`` says what else can be set."""

    def __init__(self) -> None:
        self.url = ""
        self.hold = threading.Event()
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Empty, and without a fault."""
        self.kept: dict[str, Kept] = {}
        self.seen: list[Seen] = []
        self.answers: list[int | str | None] = []
        """For the next requests: a status instead of what they ask for, None to hang up, "as asked", or "unsaid": it is
        done, and then the line is cut."""
        self.hold.set()  # until it is set, nothing is answered
        self.has_tags = True  # whether there are ETags
        self.tells_tags = True  # whether a PUT is answered with its ETag
        self.gone_is_404 = False  # instead of 412, for an If-Match on what is not there
        self.before_delete: list[Callable[[], object]] = []
        """What others do between a look and a removal, once each."""
        self._writes = 0

    def put(self, path: str, body: bytes) -> str:
        """Somebody writes there; the new ETag."""
        self._writes += 1
        self.kept[path] = Kept(body, f'"{self._writes}"')
        return self.kept[path].tag

    def handle(self, request: _Handler, method: str, body: bytes) -> tuple[int, str, bytes] | None:
        """Status, ETag and body of the answer; None: hang up."""
        match, none_match = request.headers["If-Match"], request.headers["If-None-Match"]
        condition = f"match {match}" if match else f"none-match {none_match}" if none_match else ""
        self.seen.append(Seen(method, request.path, request.headers["Authorization"], condition))
        self.hold.wait(30)
        with self._lock:
            status = self.answers.pop(0) if self.answers else "as asked"
            if status == "unsaid":
                self._done(request, method, body)
                return None
            if status != "as asked":
                return None if status is None else (int(status), "", b"as it was told\nto say")
            return self._done(request, method, body)

    def _done(self, request: _Handler, method: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "DELETE" and self.before_delete:
            self.before_delete.pop(0)()
        held = self.kept.get(request.path)
        if self._refuses(request, held):
            return (404 if held is None and self.gone_is_404 else 412), "", b""
        if method == "PUT":
            tag = self.put(request.path, body)
            return (200 if held else 201), (tag if self.tells_tags and self.has_tags else ""), b""
        if held is None:
            return 404, "", b""
        if method == "DELETE":
            del self.kept[request.path]
            return 204, "", b""
        return 200, (held.tag if self.has_tags else ""), held.body

    def _refuses(self, request: _Handler, held: Kept | None) -> bool:
        match, none_match = request.headers["If-Match"], request.headers["If-None-Match"]
        return (match is not None and (held is None or held.tag != match)) or (none_match == "*" and held is not None)


class _Handler(BaseHTTPRequestHandler):
    store: HttpStore

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        answer = self.store.handle(self, self.command, body)
        if answer is None:
            self.close_connection = True
            return
        status, tag, content = answer
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if status != 204:
            self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = _any  # noqa: N815  # the names that the standard library calls

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """A client that has gone is no news."""


@contextmanager
def http_store(tls: ssl.SSLContext | None = None) -> Iterator[HttpStore]:
    """A store on a free port of this host; ``tls``: by https."""
    store = HttpStore()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    store.url = f"http://127.0.0.1:{server.server_port}"
    if tls is not None:
        store.url = store.url.replace("http:", "https:")
        # the handler's first read shakes hands, so that a client who does not keeps no other out
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield store
    finally:
        store.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
