"""docs/reference/variables.md: who owns each environment variable of the engine's container."""

from __future__ import annotations

from lab.pages.markdown import table
from vllm_spark.recipe import variable_owners

HEAD = """\
# Environment variables of the engine

`make docs` writes this page from `recipes/variables.yml`; do not edit it. The `env` of a recipe and
`overrides.env` of a deployment may set the variables of the user and of the engine. `check`, `render` and `plan` refuse
the others, and `recipe import` leaves them out. A variable that is not listed belongs to the user.
A variable whose name is that of a secret (`AWS_SECRET_ACCESS_KEY`, `DB_PASS`, `GH_TOKEN_FILE`), and a value that
contains one (`https://USER:PASSWORD@HOST`), belongs in `vllm_secrets` of the inventory: elsewhere it would be readable
in the recipe, the launch and the record of the deployment. `recipes/engines` has the variables of each version of vLLM.
"""
COLUMNS = ("owner", "variables", "reason", "source")


def text() -> str:
    """Return the page."""
    rows = (
        (
            entry.owner,
            ", ".join(f"`{name}`" for name in entry.names),
            entry.why,
            entry.source,
        )
        for entry in variable_owners.entries()
    )
    return f"{HEAD}\n{table(COLUMNS, rows)}\n"
