"""The sinks that come with the core keep what every status sink keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from enginebay.testing import StatusSinkSuite
from support.http_store import HttpStore, http_store


class TestMemory(StatusSinkSuite):
    name = "memory"
    lasting = False


class TestSqlite(StatusSinkSuite):
    name = "sqlite"


class TestHttp(StatusSinkSuite):
    name = "http"

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[HttpStore]:
        with http_store() as store:
            yield store

    @pytest.fixture
    def sink_options(self, store: HttpStore) -> Mapping[str, Any]:
        return {"url": f"{store.url}/workers/"}
