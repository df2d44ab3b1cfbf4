"""Finding, loading and checking plugins, and the one typed door to pluggy.

Listing reads package metadata only. A plugin's module is imported when it is asked for by name, never before.
"""

from enginebay.plugins._find import Installed
from enginebay.plugins._hooks import Hooks
from enginebay.plugins._host import Loaded, PluginHost
from enginebay.plugins._options import section_of
from enginebay.plugins._pass_order import order_passes
from enginebay.plugins._schema import config_schema

__all__ = ["Hooks", "Installed", "Loaded", "PluginHost", "config_schema", "order_passes", "section_of"]
