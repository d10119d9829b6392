"""The artefacts of a release, judged by sha256sum, ssh-keygen and ansible-galaxy."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from clean_environment import Environment
from lab import dist
from vllm_spark.core import paths

pytestmark = pytest.mark.skipif(
    not shutil.which("git") or not (paths.ROOT / ".git").exists(), reason="a release is built from a commit"
)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)), check=True)
    return file


@pytest.fixture(scope="module")
def release(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    assert dist.main(["--into", str(folder), "--key", str(key)]) == 0
    return folder


def typed(release: Path, key: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Type the block of the page that verifies a release."""
    page = (paths.ROOT / "docs" / "operations" / "controllers.md").read_text()
    block = next(part for part in page.split("```")[1::2] if name in part).replace("KEY.pub", f"{key}.pub")
    return subprocess.run(
        ("bash", "-e", "-o", "pipefail", "-c", block), cwd=release, capture_output=True, text=True, check=False
    )


def test_an_owner_verifies_it_as_the_page_says(release: Path, key: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(release, tmp_path / "copy"))
    done = typed(folder, key, dist.SUMS)
    assert done.returncode == 0, done.stderr
    assert 'Good "vllm-spark-release" signature for release' in done.stdout
    assert done.stdout.count(": OK") == 3
    (wheel,) = folder.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    done = typed(folder, key, dist.SUMS)
    assert done.returncode != 0
    assert f"{wheel.name}: FAILED" in done.stdout
    listed = folder / dist.SUMS
    listed.write_text(dist.sums(sorted(folder.glob("vllm*"))))
    assert "incorrect signature" in typed(folder, key, dist.SUMS).stderr


def test_another_folder_umask_zone_and_time_give_the_same_bytes(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        assert dist.main(["--into", str(tmp_path)]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / dist.SUMS).read_text() == (release / dist.SUMS).read_text()
    assert f"{dist.SUMS} is not signed" in capsys.readouterr().out
    assert not (tmp_path / f"{dist.SUMS}.sig").exists()


def test_the_wheel_knows_its_commit(release: Path) -> None:
    head = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=paths.ROOT, capture_output=True, text=True, check=True
    ).stdout
    (wheel,) = release.glob("*.whl")
    assert zipfile.ZipFile(wheel).read("vllm_spark/core/commit.txt").decode() == head


def test_the_wheel_says_who_made_it_and_for_what(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    galaxy = yaml.load((paths.ROOT / "galaxy.yml").read_text(), yaml.CSafeLoader)
    assert [metadata["Author"]] == galaxy["authors"]
    assert metadata["Keywords"].split(",") == galaxy["tags"]
    assert metadata["Summary"] == galaxy["description"]
    classifiers = metadata.get_all("Classifier")
    page = (paths.ROOT / "docs" / "operations" / "controllers.md").read_text()
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in classifiers
        assert version in page or version in (paths.ROOT / "README.md").read_text()
    # The sources are not public.
    assert metadata.get_all("Project-URL") is None


# Tests that read files beside tests/unit, one of each folder of MANIFEST.in.
READ_MORE = (
    *("bench/test_bench_report_compared.py", "cli/test_verbs.py", "inventory/test_inventory_source.py"),
    *("lifecycle/test_moment.py", "node/test_watching_client.py", "plugins/test_spark_io.py"),
    *("deploy/test_host_findings.py", "sizing/test_catalogue.py", "verify/test_tiny_model.py"),
)


def test_a_packager_runs_the_unit_tests_of_the_sdist(release: Path, tmp_path: Path) -> None:
    packed = next(one for one in release.glob("vllm_spark-*.tar.gz") if "toolkit" not in one.name)
    shutil.unpack_archive(packed, tmp_path)
    (source,) = tmp_path.iterdir()
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "ANSIBLE_CONFIG": str(source / "ansible.cfg")}

    def pytest_of_it(*words: str) -> str:
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        done = subprocess.run(argv, cwd=source, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    # All can be imported, and those of the other half of the tree are not there.
    assert len(pytest_of_it("--collect-only", "tests/unit").splitlines()) > 7000
    assert not (source / "tests" / "unit" / "project").exists()
    assert " passed" in pytest_of_it(*(f"tests/unit/{name}" for name in READ_MORE))


def test_ansible_galaxy_installs_and_verifies_the_collection(release: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path)
    made.link("ansible-core")
    (built,) = release.glob("vllm_spark-toolkit-*.tar.gz")
    status, output = made.ansible(
        "galaxy", "collection", "install", "--offline", "-p", str(made.collections), str(built)
    )
    assert status == 0, output
    verify = ("galaxy", "collection", "verify", "--offline", "vllm_spark.toolkit")
    status, output = made.ansible(*verify)
    assert status == 0, output
    (made.collections / "ansible_collections/vllm_spark/toolkit/deploy.yml").write_text("changed\n")
    status, output = made.ansible(*verify)
    assert "deploy.yml" in output
    assert status != 0


def test_a_commit_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert dist.main(["--ref", "nope", "--into", str(tmp_path)]) == 1
    assert "git ended with status 128" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
