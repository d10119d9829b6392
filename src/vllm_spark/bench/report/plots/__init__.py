"""The plots of the report. Each module has `PLOT = Plot(…)`; a new file here is a new plot."""

from __future__ import annotations

import importlib
import pkgutil

from vllm_spark.bench.report.material import Plot


def registered() -> list[Plot]:
    """Return the plots in their order on the page. Raises ValueError if a module has no PLOT."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        plot = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PLOT", None)
        if not isinstance(plot, Plot):
            raise ValueError(f"{__name__}.{module.name} has no PLOT")
        found.append(plot)
    return sorted(found, key=lambda plot: plot.order)
