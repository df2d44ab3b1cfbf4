"""From a config to a running group: the plan, the fit of its parts, the workers brought up, the core put together."""
