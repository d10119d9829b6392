"""The figures that a cell is measured for. Their spread ends the cell, and a comparison judges the cell by all of them.

They follow from the cell's lengths, so that evidence of every age has them.
"""

from __future__ import annotations

from vllm_spark.node.bench.records import Cell

# After a long prompt an answer that is no longer than this only shows when the prompt is done.
PROMPT_OUTPUT = 16
# With so many tokens before each token of the answer the prompt counts: on a Spark a dense 31B reads 1500 tok/s and
# writes 7 (field report 003), so it takes 4 % of the time of such a request, and 80 % of one with 100000 tokens of
# context and 128 of answer.
PROMPT_SHARE = 8
FIRST = "first_token"


def leading_metrics(cell: Cell) -> tuple[str, ...]:
    """Return the metrics that a cell is measured for, the most important one first."""
    if "start" in cell["server"]:
        return ("start",)
    if "documents" in cell:
        return ("documents",)
    decode = "total" if cell["streams"] > 1 else "decode"
    if not measures_prompt(cell):
        return (decode,)
    return (FIRST,) if cell["output"] <= PROMPT_OUTPUT else (decode, FIRST)


def measures_prompt(cell: Cell) -> bool:
    """Return True if the time to the first token is a figure that the cell is measured for."""
    return cell["output"] == 1 or cell["depth"] + cell["prompt"] >= PROMPT_SHARE * cell["output"]
