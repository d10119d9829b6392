"""Bundles signed and verified with the real ssh-keygen: each damage has its own refusal, and no key may ask."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.core.refusal import RefusedError
from vllm_spark.transfer import bundle, bundle_check, bundle_signature
from vllm_spark.transfer.bundle import BundleRequest
from vllm_spark.transfer.bundle_check import Trust
from vllm_spark.transfer.bundle_signature import Judgement, SigningKey
from waiting import until

CONTENTS, LIST, SIGNATURE = bundle_check.CONTENTS, bundle_check.LIST, bundle_check.SIGNATURE
LAYER = f"images/blobs/sha256/{hashlib.sha256(b'layer').hexdigest()}"
PARTS = {
    "wheels/demo-1-py3-none-any.whl": b"wheel",
    LAYER: b"layer",
    "hub/models--a--b/blobs/one": b"weights",
    "hub/models--a--b/.vllm-spark/one.json": b"{}",
}
PASSPHRASE = "a pass phrase"


def quiet(_: str) -> None:
    """Print nothing."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def keygen(*words: str | Path) -> str:
    return subprocess.run(["ssh-keygen", *map(str, words)], check=True, capture_output=True, text=True).stdout


def new_key(file: Path, passphrase: str = "", key_type: str = "ed25519") -> Path:
    keygen("-q", "-t", key_type, "-N", passphrase, "-C", "anna", "-f", file)
    return file


def allow(signers: Path, key: Path, options: str = 'namespaces="vllm-spark-bundle" ') -> Path:
    signers.write_text(f"anna@laptop {options}{key.with_suffix('.pub').read_text()}")
    return signers


def fingerprint(key: Path) -> str:
    return keygen("-lf", key.with_suffix(".pub")).split()[1]


def write_parts(folder: Path) -> Path:
    for path, content in PARTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    link = folder / "hub/models--a--b/snapshots/c/model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../blobs/one")
    return folder


def seal(folder: Path, key: Path) -> None:
    bundle_check.seal(folder, {"models": []}, SigningKey(str(key), key), quiet)


def refused(folder: Path, trust: Trust) -> dict[str, str]:
    """Return id -> text of the refusals of a bundle that holds nothing that is wanted."""
    return {refusal.id: str(refusal) for refusal in bundle.refusals(folder, BundleRequest((), ()), trust, quiet)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle, a second one by the same signer, the signer's key, another key, and the accepted signers."""
    top = tmp_path_factory.mktemp("site")
    allow(top / "allowed_signers", new_key(top / "key"))
    new_key(top / "stranger")
    for name in ("bundle", "other"):
        seal(write_parts(top / name), top / "key")
    (top / "other" / "wheels" / "more.whl").write_bytes(b"more")
    seal(top / "other", top / "key")
    return top


@pytest.fixture
def copy(site: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(site, tmp_path / "copy", symlinks=True))


@pytest.fixture(autouse=True)
def no_keys_of_the_tester(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def test_a_signed_bundle_names_its_signer_and_every_file(site: Path) -> None:
    lines: list[str] = []
    listed = bundle_check.verify(site / "bundle", Trust(site / "allowed_signers"), lines.append)
    assert f"signed by anna@laptop ({fingerprint(site / 'key')})" in lines[0]
    assert set(listed.files) == {*PARTS, CONTENTS, "hub/models--a--b/snapshots/c/model.safetensors"}


def resign(folder: Path, key: Path, namespace: str) -> None:
    (folder / SIGNATURE).unlink()
    keygen("-Y", "sign", "-q", "-f", key, "-n", namespace, folder / LIST)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def other(copy: Path, *names: str) -> None:
    for name in names:
        shutil.copy(copy / "other" / name, copy / "bundle" / name)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def swap_contents(copy: Path) -> None:
    """Give a valid signature another list, with the files that this list names."""
    edit(copy / "bundle" / LIST, "wheels/demo-1-py3-none-any.whl", "wheels/evil.whl")
    (copy / "bundle/wheels/demo-1-py3-none-any.whl").rename(copy / "bundle/wheels/evil.whl")


WHEEL = "bundle/wheels/demo-1-py3-none-any.whl"
EXPIRED = 'valid-before="20200101" '

# name -> (damage to a signed bundle or to the signers, ids of the refusals, parts of the first message)
DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str], list[str]]] = {
    "another signer": (
        lambda c: resign(c / "bundle", c / "stranger", "vllm-spark-bundle"),
        ["bundle-signer-refused"],
        ["ED25519 key SHA256:", "does not accept", "No principal matched", "ssh-keygen -lf KEY.pub"],
    ),
    "an expired key": (
        lambda c: allow(c / "allowed_signers", c / "key", EXPIRED),
        ["bundle-signer-refused"],
        ["key has expired", "2020-01-01"],
    ),
    "a key for another purpose": (
        lambda c: allow(c / "allowed_signers", c / "key", 'namespaces="file" '),
        ["bundle-signer-refused"],
        ["not permitted for use in signature namespace"],
    ),
    "a signature of another namespace": (
        lambda c: resign(c / "bundle", c / "key", "git"),
        ["bundle-signature"],
        ["namespace does not match", "'vllm-spark-bundle'"],
    ),
    "no signers": (
        lambda c: (c / "allowed_signers").unlink(),
        ["bundle-signer-refused"],
        ["ED25519 key SHA256:", "No such file or directory", "cat KEY.pub"],
    ),
    "a signers file without keys": (
        lambda c: (c / "allowed_signers").write_text("nothing here\n"),
        ["bundle-signer-refused"],
        ["does not accept"],
    ),
    "no signature": (
        lambda c: (c / "bundle" / SIGNATURE).unlink(),
        ["bundle-unsigned"],
        ["does not exist", "bundle_unsigned=true"],
    ),
    "a truncated signature": (
        lambda c: cut(c / "bundle" / SIGNATURE, 100),
        ["bundle-signature"],
        ["100 characters", "missing footer"],
    ),
    "an empty signature": (
        lambda c: cut(c / "bundle" / SIGNATURE, 0),
        ["bundle-signature"],
        ["0 characters", "missing header"],
    ),
    "a signature with a line missing": (
        lambda c: edit(c / "bundle" / SIGNATURE, (c / "bundle" / SIGNATURE).read_text().splitlines()[2] + "\n", ""),
        ["bundle-signature"],
        ["invalid format"],
    ),
    "the list of another bundle": (
        lambda c: other(c, LIST, SIGNATURE),
        ["bundle-list-other"],
        ["is the list of bundle", f"{CONTENTS} is of bundle"],
    ),
    "the list and the contents of another bundle": (
        lambda c: other(c, LIST, SIGNATURE, CONTENTS),
        ["bundle-file-missing"],
        ["wheels/more.whl"],
    ),
    "the signature of another bundle": (
        lambda c: other(c, SIGNATURE),
        ["bundle-signature"],
        ["incorrect signature"],
    ),
    "a changed list": (swap_contents, ["bundle-signature"], ["incorrect signature", "sha256"]),
    "an empty list": (
        lambda c: cut(c / "bundle" / LIST, 0),
        ["bundle-signature"],
        [sha256(b""), "incorrect signature"],
    ),
    "no list": (lambda c: (c / "bundle" / LIST).unlink(), ["bundle-signature"], [sha256(b""), "incorrect signature"]),
    "changed contents": (
        lambda c: edit(c / "bundle" / CONTENTS, '"models": []', '"models": [1]'),
        ["bundle-file-changed"],
        [CONTENTS],
    ),
    "contents without an id": (
        lambda c: (c / "bundle" / CONTENTS).write_text("{}"),
        ["bundle-list"],
        ["KeyError: 'id'"],
    ),
    "a changed wheel": (
        lambda c: (c / WHEEL).write_bytes(b"evil!"),
        ["bundle-file-changed"],
        [f"wheels/demo-1-py3-none-any.whl (sha256 {sha256(b'evil!')}, the list has {sha256(b'wheel')})"],
    ),
    "a missing wheel": (lambda c: (c / WHEEL).unlink(), ["bundle-file-missing"], ["wheels/demo-1-py3-none-any.whl"]),
    "an additional wheel": (
        lambda c: (c / "bundle/wheels/evil.whl").write_bytes(b""),
        ["bundle-file-extra"],
        ["1 path(s)", "wheels/evil.whl"],
    ),
    "an additional link": (
        lambda c: (c / "bundle/wheels/evil.whl").symlink_to("demo-1-py3-none-any.whl"),
        ["bundle-file-extra"],
        ["wheels/evil.whl"],
    ),
    "a link to a folder": (
        lambda c: (c / "bundle/wheels/more").symlink_to("../images"),
        ["bundle-file-link"],
        ["wheels/more leads to"],
    ),
    "a link that leads out": (
        lambda c: ((c / WHEEL).unlink(), (c / WHEEL).symlink_to("/etc/passwd")),
        ["bundle-file-link"],
        ["leads to /etc/passwd"],
    ),
    "a pipe": (lambda c: os.mkfifo(c / "bundle/wheels/pipe"), ["bundle-file-link"], ["wheels/pipe"]),
    "a changed blob and an additional name that a terminal obeys": (
        lambda c: (
            (c / "bundle" / LAYER).write_bytes(b"l"),
            (c / "bundle/images/\x1b[31m").write_bytes(b""),
        ),
        ["bundle-file-changed", "bundle-file-extra"],
        [LAYER],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_has_its_refusal(copy: Path, name: str) -> None:
    damage, ids, texts = DAMAGES[name]
    trust = Trust(copy / "allowed_signers")
    assert refused(copy / "bundle", trust) == {}
    damage(copy)
    found = refused(copy / "bundle", trust)
    assert list(found) == ids
    first = found[ids[0]]
    assert [text for text in texts if text not in first] == []
    assert all(" Fix: " in text and "docs/runbooks/bundle-signature.md" in text for text in found.values())
    assert "\x1b" not in "".join(found.values())


def test_a_damaged_list_that_was_signed_is_refused(copy: Path) -> None:
    for text in ("", "# vllm-spark bundle\n", f"# vllm-spark bundle {'0' * 32}\n{'0' * 64}  ../x\n"):
        (copy / "bundle" / LIST).write_text(text)
        resign(copy / "bundle", copy / "key", "vllm-spark-bundle")
        assert list(refused(copy / "bundle", Trust(copy / "allowed_signers"))) == ["bundle-list"]


def test_an_unsigned_bundle_needs_the_option_on_both_sides(tmp_path: Path, site: Path) -> None:
    folder = write_parts(tmp_path / "bundle")
    accepted, signers = Trust(tmp_path / "none", unsigned=True), Trust(site / "allowed_signers")
    assert accepted.signing_key(quiet) is None
    bundle_check.seal(folder, {"models": []}, None, quiet)
    assert list(refused(folder, signers)) == ["bundle-unsigned"]
    assert refused(folder, accepted) == {}
    (folder / "wheels/evil.whl").write_bytes(b"")
    assert list(refused(folder, accepted)) == ["bundle-file-extra"]


def test_the_option_for_unsigned_bundles_accepts_no_wrong_signature(copy: Path) -> None:
    resign(copy / "bundle", copy / "stranger", "vllm-spark-bundle")
    assert list(refused(copy / "bundle", Trust(copy / "allowed_signers", unsigned=True))) == ["bundle-signer-refused"]


def test_a_bundle_that_was_unsigned_and_is_signed_now_has_one_signature(copy: Path) -> None:
    bundle_check.seal(copy / "bundle", {"models": []}, None, quiet)
    assert not (copy / "bundle" / SIGNATURE).exists()
    seal(copy / "bundle", copy / "key")
    assert refused(copy / "bundle", Trust(copy / "allowed_signers")) == {}


# --- keys


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An ssh-agent of this test. Yields a function that adds a key with PASSPHRASE or none."""
    socket, askpass = tmp_path / "agent", tmp_path / "askpass"
    askpass.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    askpass.chmod(0o700)
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as running:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        # The socket appears before the agent listens on it. Status 2: no agent answers.
        until(lambda: subprocess.run(["ssh-add", "-l"], capture_output=True, check=False).returncode != 2)

        def add(key: Path) -> None:
            environment = {**os.environ, "SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force"}
            subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, stdin=subprocess.DEVNULL)

        yield add
        running.terminate()


def sign_and_verify(tmp_path: Path, key: Path, named: str = "") -> list[str]:
    """Sign a bundle as the operator's choice finds the key, and verify that `key` signed it. Return the log."""
    lines: list[str] = []
    trust = Trust(allow(tmp_path / "signers", key), named)
    folder = write_parts(tmp_path / "bundle")
    bundle_check.seal(folder, {"models": []}, trust.signing_key(lines.append), quiet)
    bundle_check.verify(folder, Trust(trust.signers), lines.append)
    assert [line for line in lines if "is signed by" in line and fingerprint(key) in line]
    return lines


@pytest.mark.parametrize("key_type", ["ed25519", "ecdsa", "rsa"])
def test_the_default_key_of_ssh_signs(tmp_path: Path, key_type: str) -> None:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    key = new_key(tmp_path / "home" / ".ssh" / f"id_{key_type}", key_type=key_type)
    assert f"will be signed with {key}" in sign_and_verify(tmp_path, key)[0]


@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_a_named_key_signs(tmp_path: Path, suffix: str) -> None:
    key = new_key(tmp_path / "mine")
    sign_and_verify(tmp_path, key, f"{key}{suffix}")


@pytest.mark.parametrize("named", [False, True])
def test_a_key_of_the_agent_signs(tmp_path: Path, agent: Callable[[Path], None], named: bool) -> None:
    key = new_key(tmp_path / "mine", PASSPHRASE)
    agent(key)
    if not named:
        key.unlink()
    sign_and_verify(tmp_path, key, str(key) if named else "")


def test_the_agents_key_that_the_readers_accept_is_taken(tmp_path: Path, agent: Callable[[Path], None]) -> None:
    first, second = new_key(tmp_path / "first"), new_key(tmp_path / "second")
    agent(first)
    agent(second)
    sign_and_verify(tmp_path, second)


def unusable(tmp_path: Path, named: str) -> tuple[str, str]:
    """Return (id, text) of the refusal, which comes without a question."""
    started_at = time.monotonic()
    with pytest.raises(RefusedError) as raised:
        Trust(tmp_path / "signers", named).signing_key(quiet)
    assert time.monotonic() - started_at < bundle_signature.TIMEOUT_S / 2
    [refusal] = raised.value.refusals
    return refusal.id, str(refusal)


def test_no_key_is_refused(tmp_path: Path) -> None:
    refusal_id, text = unusable(tmp_path, "")
    assert refusal_id == "bundle-no-key"
    assert "id_ed25519" in text
    assert "Fix: ssh-keygen -t ed25519" in text
    assert "bundle_unsigned=true" in text


def test_an_agent_without_keys_is_refused(tmp_path: Path, agent: Callable[[Path], None]) -> None:
    assert callable(agent)
    assert unusable(tmp_path, "")[0] == "bundle-no-key"


def test_a_named_key_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refusal_id, text = unusable(tmp_path, "~/nowhere")
    assert (refusal_id, str(tmp_path / "home" / "nowhere") in text) == ("bundle-no-key", True)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_passphrase_without_an_agent_is_refused_and_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    key = new_key(tmp_path / "locked", PASSPHRASE)
    if terminal:  # a graphical session whose askpass would wait
        waits = tmp_path / "waits"
        waits.write_text("#!/bin/sh\nsleep 600\n")
        waits.chmod(0o700)
        monkeypatch.setenv("SSH_ASKPASS", str(waits))
        monkeypatch.setenv("DISPLAY", ":0")
    refusal_id, text = unusable(tmp_path, str(key))
    assert refusal_id == "bundle-key"
    assert "incorrect passphrase" in text
    assert f"ssh-add {key}" in text


def test_a_key_that_is_not_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a key\n")
    assert unusable(tmp_path, str(tmp_path / "text"))[0] == "bundle-key"


def test_a_machine_without_ssh_keygen_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key(tmp_path / "mine")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unusable(tmp_path, str(key))[0] == "bundle-no-ssh-keygen"


@pytest.mark.parametrize("source", ["mine", "mine.pub", "the agent"])
def test_the_line_for_the_readers_is_printed_and_works(
    tmp_path: Path, agent: Callable[[Path], None], source: str
) -> None:
    key, lines = new_key(tmp_path / "mine"), list[str]()
    if source == "mine":
        key.with_suffix(".pub").unlink()
    else:
        agent(key)
    trust = Trust(tmp_path / "inventory" / "allowed_signers", "" if source == "the agent" else str(tmp_path / source))
    trust.signers.parent.mkdir()
    folder = write_parts(tmp_path / "bundle")
    bundle_check.seal(folder, {"models": []}, trust.signing_key(lines.append), quiet)
    [warning] = [line for line in lines if line.startswith("warning ")]
    command = re.findall(r"Fix: (.*?)\. Then", warning)[0]
    subprocess.run(["sh", "-c", command], check=True)
    assert refused(folder, trust) == {}
    assert trust.signing_key(lines.append)
    assert sum(line.startswith("warning ") for line in lines) == 1, "no warning for an accepted key"


def test_the_signer_is_warned_of_a_line_that_the_readers_refuse(tmp_path: Path) -> None:
    key, lines = new_key(tmp_path / "mine"), list[str]()
    Trust(allow(tmp_path / "signers", key, EXPIRED), str(key)).signing_key(lines.append)
    assert ["key has expired" in line for line in lines] == [True]


def test_a_security_key_is_reported_as_untested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The name of its type in ssh-keygen's sentences; sshkey_type() of OpenSSH.
    monkeypatch.setattr(bundle_signature, "judge", lambda *_: Judgement("ED25519-SK key SHA256:QUFB", "anna@laptop"))
    key = new_key(tmp_path / "mine")
    [line] = bundle_signature.warnings(SigningKey(str(key), key), tmp_path / "none")
    assert "not tested" in line


# --- the command before the toolkit is installed


def test_the_command_verifies_with_the_standard_library_alone(site: Path, copy: Path) -> None:
    words = ["python3", "-I", "-S", "-c"]
    source = Path(bundle_check.__file__).parents[2]
    program = f"import sys; sys.path.insert(0, {str(source)!r}); from vllm_spark.transfer import bundle_check as b; "
    program += "sys.exit(b.main(sys.argv[1:]))"
    (copy / "bundle/wheels/evil.whl").write_bytes(b"")
    for folder, status, text in ((site / "bundle", 0, "files are as listed"), (copy / "bundle", 1, "wheels/evil.whl")):
        argv = [*words, program, str(folder), "--signers", str(site / "allowed_signers")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert text in done.stdout + done.stderr
