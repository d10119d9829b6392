"""Launches handed to a real `docker create`, and their containers removed again. Nothing is started.

What a launch needs of a Spark is replaced: the image by one without a file, `run` by `create`, the files and folders of
the host by empty ones, and the name of the container by a free one.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from fakes.invented_pins import write_lock
from vllm_spark.cli import main
from vllm_spark.recipe import loader

# The launch script computes on a Spark the bytes that the container may use.
MEMORY = 64 << 30
SOURCE = re.compile(r"(?<=source=)[^,]+")


@dataclass
class Engine:
    """A Docker engine with an image of a few bytes. `refused` has the answer to each launch that it does not take."""

    image: str
    folder: Path
    containers: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def create(self, name: str, script: str) -> None:
        """Hand the launch in a script to `docker create`."""
        argv = self._argv(script)
        began = monotonic()
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        self.seconds += monotonic() - began
        if done.returncode:
            self.refused[name] = done.stderr.strip()
        else:
            self.containers.append(done.stdout.strip())

    def create_recipe(self, file: Path) -> None:
        """Hand every launch of a recipe to `docker create`: open and closed, each rank."""
        document = loader.read(file).document
        lock = write_lock(document, self.folder / "lock.yml")
        for rank in range(document["topology"]["nodes"]):
            for words in ([], ["--open"]):
                name = f"{document['name']} rank {rank}{' '.join(['', *words])}"
                with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as message:
                    status = main.main(["render", str(file), "--rank", str(rank), "--lock", str(lock), *words])
                if status:
                    self.refused[name] = message.getvalue()
                else:
                    self.create(name, printed.getvalue())

    def _argv(self, script: str) -> list[str]:
        command = script.partition("\nexec ")[2]
        printed = subprocess.run(
            ["sh", "-c", f"memory={MEMORY}; printf '%s\\0' {command}"], capture_output=True, text=True, check=True
        )
        words = printed.stdout.removesuffix("\0").split("\0")
        # The supervisor of a pair precedes `docker run`; the labels are the last options before the image.
        begin, image = words.index("docker"), len(words) - words[::-1].index("--label") + 1
        options = self._on_this_machine(words[begin + 2 : image])
        return ["docker", "create", *options, self.image, *words[image + 1 :]]

    def _on_this_machine(self, options: list[str]) -> Iterator[str]:
        for option, word in zip(["", *options], options, strict=False):
            match option:
                case "--mount":
                    source = self.folder / SOURCE.search(word)[0].lstrip("/")  # type: ignore[index]
                    source.mkdir(parents=True, exist_ok=True)
                    yield SOURCE.sub(str(source), word)
                case "--env-file":
                    yield os.devnull
                case "--name":
                    yield f"{self.image}-{len(self.containers)}"
                case _:
                    yield word


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Give an engine, and remove what it created. Raises CalledProcessError if Docker does not answer."""
    image = f"vllm-spark-test-{uuid.uuid4().hex[:12]}"
    with tarfile.open(folder / "empty.tar", "w"):
        pass
    subprocess.run(["docker", "import", str(folder / "empty.tar"), image], check=True, capture_output=True)
    held = Engine(image, folder)
    try:
        yield held
    finally:
        subprocess.run(["docker", "rm", "--force", *held.containers], check=bool(held.containers), capture_output=True)
        subprocess.run(["docker", "image", "rm", image], check=True, capture_output=True)
