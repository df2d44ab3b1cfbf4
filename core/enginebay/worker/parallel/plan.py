"""From transformers' own tensor-parallel plan of a model to what each rank has of every weight, and what is summed.

The plan names modules and kinds ("colwise", "rowwise", …). It is read as a statement about the model, and checked: in a
block that is split, every weight is either cut by a named rule or known to be whole on every rank. What is in neither
is refused, because a split that misses something gives wrong tokens without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.worker.parallel.cuts import Cut
from enginebay.worker.parallel.shares import HeadShare, TooManyRanks, aligned, head_shares

__all__ = ["TensorPlan", "make_plan"]

_QUERIES = frozenset({"q_proj", "q_b_proj", "query_key_value", "kv_b_proj", "sinks"})
"""What attention has for each query head; where these hold keys and values too, each query head has its own."""
_KEYS = frozenset({"k_proj", "v_proj"})
"""What it has for each KV head."""
_ONE_KV_EACH = frozenset({"query_key_value", "kv_b_proj"})
_HEAD_NORMS = {"q_norm": "queries", "k_norm": "kv", "v_norm": "kv", "q_layernorm": "queries", "k_layernorm": "kv"}
"""Norms between the projections and attention: of one head's width, the same for all, or a row for each head."""
_WHOLE = frozenset({"q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"})
"""What comes before the split projections of latent attention, whole on every rank."""
_NOT_SPLIT = frozenset({"mla_kv_a_proj", "replicated_with_grad_allreduce", "local_params"})
"""Kinds that say that something is whole: the words after it are for training."""


@dataclass
class TensorPlan:
    """One rank's part. ``cuts``: weight → its part; ``summed``: modules whose outputs are added up over the ranks;
    ``joined``: modules whose outputs are put side by side, with the width of each rank's; ``fed``: modules that get
    only their columns of the input; ``once``: biases that the first rank alone adds; ``groups``: attention module →
    how many query heads share a KV head here; ``heads``: attention module → its heads on each rank."""

    rank: int
    size: int
    cuts: dict[str, Cut] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)
    joined: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fed: dict[str, range] = field(default_factory=dict)
    once: set[str] = field(default_factory=set)
    heads: dict[str, tuple[HeadShare, ...]] = field(default_factory=dict)
    embedding: tuple[str, range] | None = None

    def words(self) -> str:
        """The split in force, for people: "3+6 query heads, 1+2 KV heads"."""
        if not self.heads:
            return f"{self.size} ranks, attention whole on each"
        shares = next(iter(self.heads.values()))
        queries, kv = ("+".join(str(len(getattr(s, what))) for s in shares) for what in ("queries", "kv"))
        replicated = "" if len({(s.kv.start, s.kv.stop) for s in shares}) == len(shares) else " (some on several ranks)"
        return f"{queries} query heads, {kv} KV heads{replicated}"


def make_plan(model: Any, rank: int, size: int) -> TensorPlan:
    """The plan of a model that is on the meta device, whole.

    Raises ``ModelError`` for a model without a plan, or with one that does not cover it.
    """
    maker = _Maker(model, TensorPlan(rank, size))
    try:
        maker.make()
    except TooManyRanks as error:
        raise maker.refusal(f"{error}: lower it") from error
    return maker.plan


class _Maker:
    def __init__(self, model: Any, plan: TensorPlan) -> None:
        self.model = model
        self.plan = plan
        self.modules: dict[str, Any] = dict(model.named_modules())
        self.kinds = dict(_kinds(model, [*self.modules, *(name for name, _ in model.named_parameters())]))

    def refusal(self, why: str) -> ModelError:
        return ModelError(
            f"{type(self.model).__name__} cannot be split by tensor_parallel_size = {self.plan.size}: {why}; "
            "or set it to 1 in [parallel], and use pipeline_parallel_size"
        )

    def make(self) -> None:
        for name, kind in self.kinds.items():
            if kind in _NOT_SPLIT or kind == "embedding_rowwise":
                continue
            if name in self.modules:
                self._module(name, self.modules[name], kind)
            else:
                self._parameter(name, kind)
        if not any(name.startswith(f"{self.model.base_model_prefix}.") for name in self.plan.cuts):
            raise self.refusal("its plan in transformers splits none of its layers")
        self._embed()
        self._check_blocks()

    # ---- one entry of the plan

    def _module(self, name: str, module: Any, kind: str) -> None:
        if kind == "moe_tp_experts":
            self.plan.summed.add(name)
            return
        if not isinstance(module, torch.nn.Linear):
            raise self.refusal(f"its plan has {name} ({type(module).__name__}) as {kind}, which is known of nn.Linear")
        match kind:
            case "colwise":
                self._rows(name, module, self._cut_of(name, module.out_features, -2))
            case "colwise_gather_output":
                parts = aligned(module.out_features, self.plan.size)
                self._rows(name, module, Cut.of(-2, parts[self.plan.rank]))
                self.plan.joined[name] = tuple(map(len, parts))
            case "rowwise":
                self._columns(name, module, self._cut_of(name, module.in_features, -1))
            case "rowwise_split_input":
                part = aligned(module.in_features, self.plan.size)[self.plan.rank]
                self._columns(name, module, Cut.of(-1, part))
                self.plan.fed[name] = part
            case _:
                raise self.refusal(f"its plan has {name} as {kind!r}, which is not known here")

    def _rows(self, name: str, module: torch.nn.Linear, cut: Cut) -> None:
        self.plan.cuts[f"{name}.weight"] = cut
        if module.bias is not None:
            self.plan.cuts[f"{name}.bias"] = Cut(-1, cut.ranges)

    def _columns(self, name: str, module: torch.nn.Linear, cut: Cut) -> None:
        self.plan.cuts[f"{name}.weight"] = cut
        self.plan.summed.add(name)
        if module.bias is not None:
            self.plan.once.add(f"{name}.bias")

    def _parameter(self, name: str, kind: str) -> None:
        parent, _, own = name.rpartition(".")
        shape = self.model.get_parameter(name).shape
        if kind == "packed_colwise" and len(shape) == 3 and shape[-2] % 2 == 0:
            half = shape[-2] // 2
            self.plan.cuts[name] = Cut.of(-2, aligned(half, self.plan.size)[self.plan.rank], packs=2, whole=half)
        elif kind == "rowwise" and len(shape) == 3:
            self.plan.cuts[name] = Cut.of(-1, aligned(shape[-1], self.plan.size)[self.plan.rank])
        elif kind == "colwise" and len(shape) == 1 and self._is_attention(parent):
            self.plan.cuts[name] = self._heads_cut(parent, own, shape[0], -1)
        else:
            raise self.refusal(f"its plan has {name} {list(shape)} as {kind!r}, which is not known here")

    # ---- where a dimension is cut

    def _is_attention(self, name: str) -> bool:
        module = self.modules.get(name)
        return type(module).__name__.endswith("Attention") and hasattr(module, "layer_idx")

    def _cut_of(self, name: str, total: int, dim: int) -> Cut:
        parent, _, own = name.rpartition(".")
        if self._is_attention(parent):
            return self._heads_cut(parent, own, total, dim)
        return Cut.of(dim, aligned(total, self.plan.size)[self.plan.rank])

    def _heads_cut(self, attention: str, own: str, total: int, dim: int) -> Cut:
        share = self._shares(attention)[self.plan.rank]
        heads, kv_heads = self._counts(attention)
        of_keys = own in _KEYS
        if dim == -2 and own not in _QUERIES | _KEYS:
            raise self.refusal(f"{attention}.{own} is no projection whose heads are known here")
        count = kv_heads if of_keys else heads
        if total % count:
            raise self.refusal(f"{attention}.{own} has {total} features for {count} heads")
        return Cut.of(dim, share.kv if of_keys else share.queries, unit=total // count)

    def _counts(self, attention: str) -> tuple[int, int]:
        """Query heads, and KV heads: by the features of the projections, since a config may name what no layer has."""
        heads = int(self.model.config.num_attention_heads)
        children = dict(self.modules[attention].named_children())
        if _ONE_KV_EACH & children.keys():
            return heads, heads
        width = self._head_width(attention)
        keys = getattr(children.get("k_proj"), "out_features", 0)
        if width < 1 or keys < width or keys % width:
            raise self.refusal(f"{attention} has keys of {keys} features for heads of {width}")
        return heads, keys // width

    def _shares(self, attention: str) -> tuple[HeadShare, ...]:
        if attention not in self.plan.heads:
            heads, kv_heads = self._counts(attention)
            if heads % kv_heads:
                raise self.refusal(f"{heads} heads do not go evenly to {kv_heads} KV heads")
            try:
                self.plan.heads[attention] = head_shares(heads, kv_heads, self.plan.size)
            except TooManyRanks as error:
                raise self.refusal(f"it has {heads} query heads and {kv_heads} KV heads: {error}") from error
        return self.plan.heads[attention]

    # ---- what no plan says

    def _embed(self) -> None:
        """The embedding is cut as the head is, by vocabulary, so that a tied one is one tensor still."""
        embedding = self.model.get_input_embeddings()
        head = self.model.get_output_embeddings()
        name = next(name for name, module in self.modules.items() if module is embedding)
        head_name = next(name for name, module in self.modules.items() if module is head)
        if not isinstance(embedding, torch.nn.Embedding) or f"{head_name}.weight" not in self.plan.cuts:
            raise self.refusal("its embedding or its head is of a kind that is not known here")
        if head.out_features != embedding.num_embeddings:
            raise self.refusal(f"its head has {head.out_features} rows, and its embedding {embedding.num_embeddings}")
        part = aligned(embedding.num_embeddings, self.plan.size)[self.plan.rank]
        self.plan.cuts[f"{name}.weight"] = Cut.of(-2, part)
        self.plan.embedding = (name, part)

    def _check_blocks(self) -> None:
        """In every module with a part that is cut, all else is cut too, or known to be whole."""
        joined = {name.rpartition(".")[0] for name in self.plan.joined}
        blocks: dict[str, set[str]] = {}
        for name in self.plan.cuts:
            owner, _, _ = name.rpartition(".")
            block = owner if owner not in self.modules or name in self.kinds else owner.rpartition(".")[0]
            blocks.setdefault(block, set()).add(name)
        decoder = self.model.base_model_prefix
        for block, cut in blocks.items():
            if block in ("", decoder):  # the embedding and the head: each is whole when its output is
                continue
            if not any(self._sums(block, name) for name in cut):
                raise self.refusal(f"its plan splits {block}, and says of nothing in it that parts are to be summed")
            if block in joined:
                continue  # what lies between sees whole rows
            for name, weight in self.modules[block].named_parameters():
                self._check_between(block, name, f"{block}.{name}", weight)

    def _sums(self, block: str, name: str) -> bool:
        return block in self.plan.summed or name.rpartition(".")[0] in self.plan.summed

    def _check_between(self, block: str, name: str, full: str, weight: torch.Tensor) -> None:
        child = name.partition(".")[0]
        if full in self.plan.cuts or full in self.plan.once or child in _WHOLE or weight.numel() == 1:
            return
        if child in _HEAD_NORMS and self._is_attention(block):
            share = self._shares(block)[self.plan.rank]
            heads, kv_heads = self._counts(block)
            count, part = (heads, share.queries) if _HEAD_NORMS[child] == "queries" else (kv_heads, share.kv)
            if weight.dim() == 2 and weight.shape[0] == count:
                self.plan.cuts[full] = Cut.of(-2, part)
                return
            if weight.dim() == 1 and weight.shape[0] == self._head_width(block):
                return
        raise self.refusal(f"its plan splits {block}, and does not say what becomes of {full} {list(weight.shape)}")

    def _head_width(self, attention: str) -> int:
        module, heads = self.modules[attention], int(self.model.config.num_attention_heads)
        for own in ("q_proj", "q_b_proj"):
            if isinstance(projection := getattr(module, own, None), torch.nn.Linear):
                return int(projection.out_features) // heads
        return -1


def _kinds(model: Any, names: list[str]) -> Iterator[tuple[str, str]]:
    """(name, kind) of everything that the plans of body and head name."""
    body: Mapping[str, str] = getattr(type(model).config_class, "base_model_tp_plan", None) or {}
    head: Mapping[str, str] = getattr(type(model), "_tp_plan", None) or {}
    prefix = f"{model.base_model_prefix}."
    rules = [(_pattern(prefix + pattern), kind) for pattern, kind in body.items()]
    rules += [(_pattern(pattern), kind) for pattern, kind in head.items()]
    for name in names:
        for pattern, kind in rules:
            if pattern.fullmatch(name):
                yield name, kind
                break


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
