"""A fake runner that serves nothing but temperature, and keeps texts to 64 tokens when it is asked to fix its cache."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import RunnerCapabilities, RunnerPlugin
from enginebay.messages import KVCacheSpec
from enginebay.worker import HostDevice
from support.fake_engine import FakeOptions, FakeRunner
from support.fake_engines import Installed

NUM_BLOCKS = 4


class PlainRunner(FakeRunner):
    """A KV cache of ``NUM_BLOCKS`` blocks, whatever the config says."""

    def kv_cache_spec(self) -> KVCacheSpec:
        spec = super().kv_cache_spec()
        return KVCacheSpec(groups=spec.groups, num_blocks=NUM_BLOCKS)


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The plain runner."""
    return [
        RunnerPlugin(
            name="plain",
            options=FakeOptions,
            factory=PlainRunner,
            capabilities=RunnerCapabilities(),
            device=lambda kind: HostDevice(),
            supports=lambda model: None if model.model_type == "fake" else "it only runs fake models",
        )
    ]


def install_plain(fake: Installed) -> None:
    """Make it an installed plugin as well."""
    info = fake.site / "plain_runner-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-runner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[enginebay.runners]\nplain = support.plain_runner\n")
