"""`recipe new` for models that owners run, and the forecast of what it writes beside a public figure (any_model.yml).

`python -m lab.forecast.any_model` prints the table of any-model.md. The files of the models are not here: a model has
the config.json of tests/data/public-configs.yml or of its row, and headers of the widths that the configuration of the
figure names (published_files.py). `recipe new` reads the widths back from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lab.forecast import measured_rows, published_files
from lab.forecast.published_files import Published
from vllm_spark.authoring import composing, judging, new_recipe
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.new_recipe import Order
from vllm_spark.core import documents, paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

FILE = Path(__file__).with_name("any_model.yml")
CONFIGS = paths.ROOT / "tests" / "data" / "public-configs.yml"
MEMORY_GB = 128


@dataclass(frozen=True, slots=True)
class Result:
    """What `recipe new` made of a row: the recipe in words, and its forecast in tok/s, None if there is none.

    `fitted` is True if the constants were fitted to the figure.
    """

    model: str
    made: str
    speed: float | None
    measured: float
    source: str
    fitted: bool = False

    @property
    def error(self) -> float | None:
        """Return forecast / measured - 1."""
        return self.speed / self.measured - 1 if self.speed else None


@cache
def configs() -> Mapping[str, Mapping[str, Any]]:
    """Return the public configurations by model."""
    return {row["model"]: row["config"] for row in documents.read_yaml(CONFIGS)}


def result(row: Mapping[str, Any]) -> Result:
    """Return what `recipe new` and the forecast say for a row. A configuration of measured rows has its own figure."""
    figure = row["figure"] if isinstance(row["figure"], Mapping) else _measured(row["figure"])
    config = row["config"] if isinstance(row["config"], Mapping) else configs()[row["config"]]
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    nodes = figure.get("nodes", 1)
    order = Order(Request(composing.recipe_name(row["model"]), drafter="none"), MEMORY_GB, nodes)
    catalogue = forecast.catalogue([paths.RECIPES])
    public = Result(row["model"], "", None, figure["decode"], figure["source"], figure.get("fitted", False))
    try:
        files = Published(row["model"], config, tensors=published_files.tensors(config, figure.get("layout", {})))
        new = new_recipe.write(files, order, catalogue)
    except RefusedError as error:
        return replace(public, made=f"refused: {', '.join(sorted({one.id for one in error.refusals}))}")
    complete = {**new.recipe, **({"architectures": new.architectures} if new.architectures else {})}
    predicted = judging.judge(complete, MEMORY_GB, ForecastRequest(figure["context"]), catalogue).result.prediction
    asked = [question.field for question in new.questions if question.field != "args.chat-template"]
    made = f"{new.family}, {nodes} Spark{'s' * (nodes > 1)}" + f"; open: {', '.join(asked)}" * bool(asked)
    return replace(public, made=made, speed=predicted.slow.tokens_per_s if predicted else None)


@cache
def _every() -> list[tuple[bool, measured_rows.Configuration]]:
    """Return every configuration of the public rows, with True for those to which constants are fitted."""
    folders = measured_rows.FITTED + measured_rows.NOT_FITTED
    return [(folder in measured_rows.FITTED, one) for folder in folders for one in measured_rows.configurations(folder)]


def _measured(name: str) -> Mapping[str, Any]:
    """Return the first row of one stream of a configuration in the form of a figure."""
    rows = ((fitted, one, row) for fitted, one in _every() if one.id == name for row in one.rows)
    fitted, one, row = next((fitted, one, row) for fitted, one, row in rows if row.streams == 1 and row.decode)
    context = row.depth + row.prompt + row.output // 2
    figure = {"decode": row.decode, "context": context, "source": one.source.partition(" (")[0], "fitted": fitted}
    return figure | {"nodes": one.tensor_parallel, "layout": one.layout}


def results() -> list[Result]:
    """Return the result of every row of the file."""
    return [result(row) for row in documents.read_yaml(FILE)]


def main() -> None:
    """Print the table."""
    for one in results():
        error = f"{one.error:+.0%}" if one.error is not None else "-"
        print(f"{one.model:<52} {one.made:<45} {one.speed or 0:6.1f} {one.measured:6.1f} {error:>5}  {one.source}")


if __name__ == "__main__":
    main()
