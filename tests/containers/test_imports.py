"""Docker takes every launch of a recipe that `recipe import` makes of a public file."""

from __future__ import annotations

from pathlib import Path

from fakes import docker_create, import_rows


def test_docker_takes_every_launch_of_an_import(tmp_path: Path) -> None:
    with docker_create.engine(tmp_path) as engine:
        for kind in import_rows.KINDS:
            for row in import_rows.rows(kind):
                folder = tmp_path / kind / row["id"]
                folder.mkdir(parents=True)
                import_rows.run(row, kind, folder)
                for file in sorted((folder / "out").glob("*.yml")):
                    engine.create_recipe(file)
        # An embedding model has no launch: `check` refuses its recipe. Nor has one whose ranks no public record starts.
        reasons = ("serves no chat", "a combination of which a public record shows a start")
        refused = {name: why for name, why in engine.refused.items() if not any(each in why for each in reasons)}
        assert refused == {}
        assert len(engine.containers) >= 2 * sum("nvidia" in str(row) for row in import_rows.rows("nvidia"))
