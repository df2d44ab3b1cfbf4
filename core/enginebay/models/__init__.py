"""Model folders and the cache of imported models: found, checked and converted, without torch.

The weights themselves are read by ``enginebay.worker.loader``.
"""

from enginebay.errors import one_line
from enginebay.models._cache import cache_home
from enginebay.models._config import check_layers, read_config
from enginebay.models._import import import_gguf
from enginebay.models._info import read_model_info
from enginebay.models._package import import_package
from enginebay.models._resolve import DEFAULT_MODEL, ImportedModel, list_models, resolve_model
from enginebay.models._weights import check_weights, weight_files

__all__ = [
    "DEFAULT_MODEL",
    "ImportedModel",
    "cache_home",
    "check_layers",
    "check_weights",
    "import_gguf",
    "import_package",
    "list_models",
    "one_line",
    "read_config",
    "read_model_info",
    "resolve_model",
    "weight_files",
]
