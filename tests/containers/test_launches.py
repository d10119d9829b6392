"""Docker takes every launch: of the catalogue, and of what `recipe new` writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import derived_hub, docker_create
from fakes.docker_create import Engine
from vllm_spark.authoring import family
from vllm_spark.cli import main
from vllm_spark.core import documents, paths
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.supervise import identity
from vllm_spark.recipe import loader

# The first docker command that knows devices of CDI. A Spark has 28 or newer.
OLDEST_CDI_CLIENT = 25


@pytest.fixture
def engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Engine]:
    with docker_create.engine(tmp_path) as held:
        yield held
    with capsys.disabled():
        taken, refused = len(held.containers), len(held.refused)
        print(f"\ndocker create: {taken} launches taken, {refused} refused, {held.seconds:.1f} s")


def test_docker_takes_every_launch_of_the_catalogue(engine: Engine) -> None:
    for name in loader.names([paths.RECIPES]):
        engine.create_recipe(paths.RECIPES / f"{name}.yml")
    assert engine.refused == {}
    assert len(engine.containers) >= 2 * len(loader.names([paths.RECIPES]))


def test_docker_takes_a_launch_with_the_gpu_by_cdi(engine: Engine, resolve: Callable[..., Spec]) -> None:
    client = subprocess.run(
        ["docker", "version", "--format", "{{.Client.Version}}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(client.partition(".")[0]) < OLDEST_CDI_CLIENT:
        pytest.skip(f"the docker command is {client}, and CDI devices are known since {OLDEST_CDI_CLIENT}")
    engine.create("by CDI", launch.script(replace(resolve(), gpu_by_cdi=True)))
    assert engine.refused == {}
    (container,) = engine.containers
    requests = "{{range .HostConfig.DeviceRequests}}{{.Driver}} {{.DeviceIDs}}{{end}}"
    shown = ["docker", "container", "inspect", "--format", requests, container]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "cdi [nvidia.com/gpu=all]\n"


def _models() -> list[str]:
    """Return a model of each family that the stand-in hub has, and one with a drafter where the family has one."""
    chosen: dict[tuple[str, bool], str] = {}
    for name, expected in documents.read_yaml(derived_hub.DATA / "expected.yml").items():
        config = json.loads(derived_hub.repository(name).files["config.json"])
        chosen.setdefault((family.of_config(name, config)["name"], bool(expected["drafter"])), name)
    return list(chosen.values())


def test_docker_takes_every_launch_of_recipe_new(engine: Engine, hub: derived_hub.Hub, tmp_path: Path) -> None:
    for name in _models():
        hub.find(name)
        assert main.main(["recipe", "new", name, "--into", str(tmp_path / "new")]) == 0
    for file in sorted((tmp_path / "new").glob("*.yml")):
        engine.create_recipe(file)
    assert engine.refused == {}
    assert len(engine.containers) >= 2 * len(_models())


def test_the_template_of_the_supervisor_prints_an_image(engine: Engine) -> None:
    argv = ["docker", "image", "inspect", "--format", identity.IMAGE_CONTENT, engine.image]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    platform, layers = done.stdout.split(" ")[:2]
    assert platform.startswith("linux/")
    assert json.loads(layers)["Layers"][0].startswith("sha256:")
    assert "null" not in done.stdout.split(" ")[2:]
