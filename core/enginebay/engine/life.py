"""Whether a group may run, and which weights it runs on: written by the engine's thread, read by whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from enginebay.errors import EngineAsleep, EngineBusy

__all__ = ["CACHE", "WEIGHTS", "Life"]

WEIGHTS: Final = "weights"
CACHE: Final = "kv_cache"


@dataclass(slots=True)
class Life:
    """One group's state beside its requests.

    ``missing``: what sleep of ``level`` gave away and ``wake_up`` has not brought back. ``path`` is the folder that the
    weights in force were read from, "" for the model's own; ``given``: they came as tensors, which nobody has kept.
    ``updating``: the number of the update whose tensors are on their way; 0: none are. ``changing``: the command that
    puts other parts in their place, for which requests wait. ``void``: why there are no
    weights that a request could be answered with.
    """

    draining: bool = False
    level: int = 0
    missing: frozenset[str] = frozenset()
    updating: int = 0
    changing: str = ""
    path: str = ""
    version: str = ""
    given: bool = False
    void: str = ""

    @property
    def words(self) -> str:
        """The state in a word or two, for a status."""
        if self.void:
            return "without weights"
        if self.missing:
            return f"asleep (level {self.level}; {', '.join(sorted(self.missing))})"
        if self.updating:
            return "updating weights"
        if self.changing:
            return f"busy with {self.changing}"
        return "draining" if self.draining else "ready"

    def refusal(self) -> EngineBusy | None:
        """Why no request is taken now; None: one is."""
        if self.void:
            return EngineAsleep(f"the engine has no weights: {self.void}; update the weights, and ask again")
        if self.missing:
            what = " and ".join(sorted(self.missing))
            return EngineAsleep(f"the engine sleeps (level {self.level}, without {what}): wake it up, and ask again")
        if self.updating:
            return EngineBusy("the engine is being given other weights: ask again in a while")
        if self.draining:
            return EngineBusy("the engine drains, and takes no new requests: ask again when it has resumed")
        return None

    @property
    def named(self) -> str:
        """`` (version 'x')`` with a leading space, or nothing."""
        return f" (version '{self.version}')" if self.version else ""

    @property
    def weights_words(self) -> str:
        """Where the weights in force are from, and their version."""
        return (self.path or ("tensors that were given" if self.given else "the model's own")) + self.named

    @property
    def weights_key(self) -> str:
        """What tells these weights from others, in the names of cached blocks; "" for the model's own."""
        return f"{self.path}\n{self.version}" if self.path or self.version or self.given else ""

    def reborn(self) -> None:
        """New workers stand, with memory and weights, whatever the old ones had given away."""
        self.missing, self.level, self.void = frozenset(), 0, ""

    def have_weights(self, *, path: str, version: str, given: bool) -> None:
        """Other weights are in force."""
        self.path, self.version, self.given = path, version, given
        self.void = ""
        self.missing -= {WEIGHTS}
        self.level = self.level if self.missing else 0

    def awake(self, tags: frozenset[str]) -> None:
        """These were brought back."""
        self.missing -= tags
        self.level = self.level if self.missing else 0
