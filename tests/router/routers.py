"""Real routers on loopback: LiteLLM in a separate folder of packages, nginx from Debian's package. Each is installed
once under .cache/routers. Each runs for one test at most, and `timeout` ends it if this process cannot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import loopback
from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

HERE = Path(__file__).parent
CACHE = paths.ROOT / ".cache" / "routers"
LITELLM, NEEDS = HERE / "requirements-litellm.txt", HERE / "requirements-needs.txt"
# LiteLLM's pages for a browser and Amazon's tables, 48 MB that no response needs.
UNREAD = ("litellm/proxy/_experimental/out", "botocore/data", "bin")

# A first start of LiteLLM compiles 3000 files, on a machine that is busy with other tests.
START_S, LIFE_S, END_S = 240, 600, 10


def litellm_packages() -> Path:
    """Return the folder with LiteLLM at its version and hash, and its requirements, as listed."""

    def fill(folder: Path) -> None:
        for listed in (LITELLM, NEEDS):
            pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--requirement", str(listed))
        for part in UNREAD:
            shutil.rmtree(folder / part, ignore_errors=True)

    return cached_folder(
        CACHE, "litellm", LITELLM.read_text(encoding="utf-8") + NEEDS.read_text(encoding="utf-8"), fill
    )


@contextmanager
def litellm(config: Mapping[str, object], folder: Path) -> Iterator[str]:
    """Yield the URL of a LiteLLM with this config. It stays on this machine and gets no variables of the test."""
    written = folder / "litellm.yml"
    written.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    port = loopback.held_port()
    begin = "import sys; sys.argv[0] = 'litellm'; from litellm import run_server; run_server()"
    # -S: of this interpreter only the standard library.
    listen = ("--host", loopback.ADDRESS, "--port", str(port))
    words = [sys.executable, "-sS", "-c", begin, "--config", str(written), *listen]
    env = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PYTHONPATH": str(litellm_packages()),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with running(words, env, port, folder / "litellm.log"):
        yield f"http://{loopback.ADDRESS}:{port}"


def nginx_binary() -> Path:
    """Return this machine's nginx, or Debian's unpacked. Skips the test if neither is available."""
    if installed := shutil.which("nginx"):
        return Path(installed)
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("no nginx on this machine, and no apt-get to fetch it with")

    def fill(folder: Path) -> None:
        lists = folder / "lists"
        (lists / "partial").mkdir(parents=True)
        own = ("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}")
        if fetch(folder).returncode:
            # The package lists of the machine are old or missing, and updating them needs root.
            subprocess.run(["apt-get", *own, "update"], capture_output=True, check=True)
            fetch(folder, *own).check_returncode()
        (package,) = folder.glob("nginx_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
        shutil.rmtree(lists)

    return cached_folder(CACHE, "nginx", "", fill) / "usr" / "sbin" / "nginx"


def fetch(folder: Path, *own: str) -> subprocess.CompletedProcess[bytes]:
    words = ["apt-get", *own, "download", "nginx"]
    return subprocess.run(words, cwd=folder, capture_output=True, check=False)


@contextmanager
def nginx(http: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an nginx with these lines in its http block; {listen} and {folder} in them are replaced."""
    port = loopback.held_port()
    kept = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
    )
    lines = http.replace("{listen}", f"{loopback.ADDRESS}:{port}").replace("{folder}", str(folder))
    written = folder / "nginx.conf"
    written.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n"
        f"events {{ }}\nhttp {{\naccess_log off;\n{kept}{lines}\n}}\n",
        encoding="utf-8",
    )
    words = [str(nginx_binary()), "-e", "stderr", "-p", str(folder), "-c", str(written)]
    with running(words, {"PATH": os.defpath}, port, folder / "nginx.log"):
        yield f"http://{loopback.ADDRESS}:{port}"


@contextmanager
def running(words: Sequence[str], env: Mapping[str, str], port: int, log: Path) -> Iterator[None]:
    """Run a program until the end of the block, and wait until its port answers. Raises RuntimeError with its log."""
    with log.open("w", encoding="utf-8") as out:
        limited = ["timeout", "--kill-after", str(END_S), str(LIFE_S), *words]
        program = subprocess.Popen(limited, env=dict(env), stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not answers(port):
            if program.poll() is not None or time.monotonic() > deadline:
                message = log.read_text(encoding="utf-8", errors="replace")[-3000:]
                raise RuntimeError(f"{words[0]} did not come up within {START_S} s, or ended:\n{message}")
            time.sleep(0.2)
        yield
    finally:
        program.terminate()
        try:
            program.wait(END_S + 5)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((loopback.ADDRESS, port)) == 0
