"""Pipeline stages: which layers a rank holds, and how activations come to the first and leave the last of them.

The model keeps its whole list of layers; those of other stages are replaced by modules that pass on what they get. The
activations enter where the first own layer is called, not where the embedding is: whatever the model does to its
embedding before the layers has been done by the first stage, and is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.worker.names import Place
from enginebay.worker.parallel.collectives import PipelineGroup
from enginebay.worker.parallel.shares import TooManyRanks, stages

__all__ = ["PipelineStage"]


class _PassedOn(torch.nn.Module):
    """In the place of a layer that another stage holds; has the plain attributes by which a model looks at layers."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, str | int | float | bool | None):
                setattr(self, name, value)

    def forward(self, hidden_states: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        return hidden_states


class PipelineStage:
    """One rank's layers. Used by the loader (``prepare``), then by the runner (``run``)."""

    def __init__(self, group: PipelineGroup) -> None:
        self.group = group
        self.layers = range(0)
        self._absent: tuple[str, ...] = ()
        self._entering: torch.Tensor | None = None
        self._leaving: torch.Tensor | None = None
        self._width = 0

    @property
    def is_first(self) -> bool:
        """Whether token ids enter here."""
        return self.group.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits leave here."""
        return self.group.stage == self.group.size - 1

    def prepare(self, model: Any) -> None:
        """Take the layers of other stages out of a model on the meta device, and what else is not used here.

        Raises ``ModelError`` when there are more stages than layers, or when the layers cannot be found.
        """
        body, num_layers = model.get_decoder(), int(model.config.num_hidden_layers)
        lists = [module for module in body.children() if isinstance(module, torch.nn.ModuleList)]
        found = [module for module in lists if len(module) == num_layers]
        if len(found) != 1:
            raise ModelError(f"{type(model).__name__} has no single list of {num_layers} layers: it has no stages")
        layers = found[0]
        try:
            self.layers = stages(num_layers, self.group.size)[self.group.stage]
        except TooManyRanks as error:
            raise ModelError(
                f"{type(model).__name__} has {num_layers} layers, and pipeline_parallel_size is {self.group.size}"
            ) from error
        self._width = int(model.config.hidden_size)
        names = {module: name for name, module in model.named_modules()}
        prefix = names[layers]
        absent = [f"{prefix}.{index}." for index in range(num_layers) if index not in self.layers]
        for index in range(num_layers):
            if index not in self.layers:
                layers[index] = _PassedOn(layers[index])
        embedding, head = names[model.get_input_embeddings()], names[model.get_output_embeddings()]
        tied = bool(getattr(model.config, "tie_word_embeddings", False))
        if not self.is_first:
            _look_nothing_up(model.get_submodule(embedding), lambda: model.dtype)  # it has its own when it is loaded
            layers[self.layers.start].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not self.is_last:
            layers[self.layers.stop - 1].register_forward_hook(self._leave)
        if not self.is_first and not (tied and self.is_last):
            absent.append(_take_out(model, embedding))
        if not self.is_last and not (tied and self.is_first):
            absent.append(_take_out(model, head))
        if tied and not self.is_first and not self.is_last:
            model.tie_weights = lambda *_args, **_options: None  # neither of the two is here
        self._absent = tuple(absent)

    def keeps(self, name: str) -> bool:
        """Whether this stage has the module's weight ``name``."""
        return not name.startswith(self._absent)

    def copies(self, _place: Place) -> bool:
        """A stage has its weights whole."""
        return False

    def cut(self, _place: Place, whole: torch.Tensor, _own_rows: int) -> torch.Tensor:
        """All of it."""
        return whole

    def run(self, model: Any, inputs: Mapping[str, Any], keep: torch.Tensor) -> torch.Tensor:
        """This stage's share of one forward: logits ``[1, len(keep), vocab]`` on the last stage, else what was sent.

        That is the activations ``[1, T, hidden]`` of all tokens.
        """
        ids: torch.Tensor = inputs["input_ids"]
        if not self.is_first:
            empty = torch.empty((*ids.shape, self._width), dtype=model.dtype, device=ids.device)
            self._entering = self.group.receive(empty)
        try:
            if self.is_last:
                logits: torch.Tensor = model(**inputs, logits_to_keep=keep).logits
                return logits
            model.get_decoder()(**inputs)
            leaving, self._leaving = self._leaving, None
        finally:
            self._entering = None
        if leaving is None or leaving.shape != (*ids.shape, self._width):
            what = "nothing" if leaving is None else f"activations of shape {list(leaving.shape)}"
            raise ModelError(f"{type(model).__name__} has no stages: its layers pass on {what}")
        self.group.send(leaving)
        return leaving

    def _enter(self, _module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (self._entering, *args[1:]), options
        return args, {**options, "hidden_states": self._entering}

    def _leave(self, _module: Any, _args: Any, output: Any) -> None:
        self._leaving = output[0] if isinstance(output, tuple) else output


def _look_nothing_up(embedding: Any, dtype: Callable[[], torch.dtype]) -> None:
    """Zeros in place of rows that a stage does not have, or has for its head alone: no layer reads them."""
    width = int(embedding.embedding_dim)

    def forward(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # nn.Embedding's own name for it
        return torch.zeros((*input.shape, width), dtype=dtype(), device=input.device)

    embedding.forward = forward


def _take_out(model: Any, name: str) -> str:
    """Puts a module without weights in the place of one that has no use here; the prefix of what is gone."""
    parent, _, own = name.rpartition(".")
    absent = torch.nn.Module()
    if (forward := vars(model.get_submodule(name)).get("forward")) is not None:
        absent.forward = forward
    setattr(model.get_submodule(parent), own, absent)
    return f"{name}."
