"""The HTTP sink over TLS: whom it trusts, what it says of whom it does not, and that no handshake holds it up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.interfaces import StatusSinkContext, Stored
from enginebay.messages import Phase, StatusRecord
from enginebay.status.sinks.http import HttpSink, HttpSinkOptions
from support.certificates import Certificate, server_context, write_certificate
from support.http_store import HttpStore, http_store
from support.status import SLOT, status

RECORD = StatusRecord(status=status(Phase.READY, message="x" * 50_000), version=1)
"""Several of TLS's own records."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="module")
def server(certificate: Certificate) -> Iterator[HttpStore]:
    with http_store(server_context(certificate)) as store:
        yield store


@pytest.fixture
def store(server: HttpStore) -> HttpStore:
    server.reset()
    return server


@pytest.fixture
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an authority of one's own: by the variable that OpenSSL reads."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))


def sink_of(url: str, timeout: float = 10.0) -> HttpSink:
    return HttpSink(StatusSinkContext(options=HttpSinkOptions(url=url, timeout=timeout), engine="one", wall=lambda: 0))


@pytest.mark.usefixtures("trusted")
def test_records_go_in_and_out(store: HttpStore) -> None:
    sink = sink_of(store.url)
    tag = sink.write(RECORD, "")
    assert sink.read(SLOT) == Stored(record=RECORD, tag=tag)
    sink.remove(SLOT, "a")
    assert sink.read(SLOT) is None
    assert [one.method for one in store.seen] == ["PUT", "GET", "GET", "DELETE", "GET"]


def test_whom_nobody_vouches_for_is_told_nothing(
    store: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(write_certificate(tmp_path, "127.0.0.1").certificate))  # another's
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with pytest.raises(OSError, match=r"^PUT https://127\.0\.0\.1:\d+/group-0/rank-0/cpu: .*certificate verify failed"):
        sink_of(store.url).write(RECORD, "")
    assert store.seen == []


@pytest.mark.usefixtures("trusted")
def test_who_has_another_name_is_told_nothing(store: HttpStore) -> None:
    with pytest.raises(OSError, match=r"certificate verify failed: Hostname mismatch.* 'localhost'"):
        sink_of(store.url.replace("127.0.0.1", "localhost")).write(RECORD, "")
    assert store.seen == []


def test_a_server_that_speaks_no_tls_is_told() -> None:
    with http_store() as plain, pytest.raises(OSError, match=r"^GET https://.*: SSLError: "):
        sink_of(plain.url.replace("http:", "https:")).read(SLOT)


def test_a_server_that_shakes_no_hands_is_left_by_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = sink_of(f"https://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
        with pytest.raises(OSError, match=r": TimeoutError: .*timed out$"):
            sink.read(SLOT)


@pytest.mark.usefixtures("trusted")
def test_a_server_that_does_not_answer_is_left_by_the_deadline(store: HttpStore) -> None:
    store.hold.clear()
    with pytest.raises(OSError, match=r": TimeoutError: .*timed out$"):
        sink_of(store.url, timeout=0.5).read(SLOT)
    store.hold.set()
