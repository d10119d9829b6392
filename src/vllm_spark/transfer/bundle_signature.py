"""The operator's ssh key signs the list of a bundle, and ssh-keygen verifies the signature. Standard library only.

ssh-keygen -Y needs OpenSSH 8.2 or later. A refusal repeats its sentence.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core.own_process import Log
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.text import one_line

BROKEN = register("bundle-signature", runbook="bundle-signature")
SIGNER_REFUSED = register("bundle-signer-refused", runbook="bundle-signature")
NO_SSH_KEYGEN = register("bundle-no-ssh-keygen", runbook="bundle-signature")
NO_KEY = register("bundle-no-key", runbook="bundle-signature")
KEY_FAILED = register("bundle-key", runbook="bundle-signature")

NAMESPACE = "vllm-spark-bundle"
# What ssh-keygen prints before its message. OpenSSH 10 names the key.
PROMPTS = re.compile(r'Signing data on standard input|Enter passphrase(?: for "[^"]*")?:')
TIMEOUT_S = 60.0
# The default files of ssh (ssh(1), -i), those of a security key last.
DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
COPY_AGAIN = "copy files.sha256, files.sha256.sig and bundle.json of the bundle again from the machine that wrote it."
UNSIGNED_FIX = "or write it with -e bundle_unsigned=true, which the reader must then accept with the same option."


class KeygenError(Exception):
    """ssh-keygen or ssh-add failed. The text is its message."""


def ssh_keygen(*words: str | Path, content: bytes = b"", program: str = "ssh-keygen") -> str:
    """Run ssh-keygen without a terminal, so that it cannot wait for a passphrase. Return its stdout.

    Raises KeygenError with its message.
    """
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(  # noqa: S603  the words are options and paths
            [program, *map(str, words)],
            input=content,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**environment, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NO_SSH_KEYGEN.error(
            what=f"this machine has no {program}",
            expected="OpenSSH 8.2 or later, which signs and verifies bundles",
            fix=Fix("sudo apt-get install openssh-client"),
        ) from error
    except subprocess.TimeoutExpired as error:
        raise KeygenError(f"{program} did not end within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        message = PROMPTS.sub("", done.stderr.decode(errors="replace"))
        raise KeygenError(one_line(" ".join(message.split()))[:400])
    return done.stdout.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key file, or `TYPE BASE64` of a key of the agent."""

    name: str
    file: Path | None = None
    public: str = ""

    def sign(self, content: bytes) -> str:
        """Return the armored signature. Raises RefusedError."""
        with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
            # ssh-keygen finds a key of the agent by its public key.
            public.write(f"{self.public}\n")
            public.flush()
            try:
                return ssh_keygen("-Y", "sign", "-f", self.file or public.name, "-n", NAMESPACE, content=content)
            except KeygenError as error:
                raise self._failed(str(error)) from error

    def _failed(self, message: str) -> RefusedError:
        add = f'eval "$(ssh-agent)"; ssh-add {str(self.file).removesuffix(".pub")}' if self.file else "ssh-add"
        return KEY_FAILED.error(
            what=f"{self.name} does not sign: {message}",
            expected="a key whose passphrase ssh-agent holds; a pull cannot ask for it",
            fix=Fix(add, f"Then the same command. Or name another key with -e bundle_key=FILE, {UNSIGNED_FIX}"),
        )

    def print_public(self) -> str:
        """Return the command that prints the public key."""
        if not self.file:
            return f"echo '{self.public}'"
        file = shlex.quote(str(self.file))
        return f"cat {file}" if self.file.suffix == ".pub" else f"ssh-keygen -y -f {file}"


def find_key(named: str, signers: Path, log: Log) -> SigningKey:
    """Return the named key, or the first of the agent and of ~/.ssh, one of allowed_signers before all others.

    Raises RefusedError.
    """
    if named:
        file = Path(named).expanduser()
        if not file.is_file():
            raise _no_key(f"bundle_key names {file}, which is not a file")
        return SigningKey(str(file), file)
    keys = [*_agent_keys(), *_default_keys()]
    if not keys:
        raise _no_key(f"there is no key in the agent and none of ~/.ssh/{', '.join(DEFAULT_NAMES)}")
    accepted = _words(signers)
    key = next((key for key in keys if key.public.partition(" ")[2] in accepted), keys[0])
    log(f"the bundle will be signed with {key.name}")
    return key


def _agent_keys() -> Iterator[SigningKey]:
    try:
        lines = ssh_keygen("-L", program="ssh-add").splitlines()
    except KeygenError:  # also if there is no agent, or if it has no keys
        return
    for kind, key, *comment in (line.split() for line in lines if line.startswith(KEY_TYPES)):
        if "-cert-" not in kind:
            yield SigningKey(f"the agent's key {' '.join(comment) or kind}", None, f"{kind} {key}")


def _default_keys() -> Iterator[SigningKey]:
    for name in DEFAULT_NAMES:
        file = Path.home() / ".ssh" / name
        if file.is_file():
            yield SigningKey(str(file), file, " ".join(_words(file.with_suffix(".pub"))[:2]))


def _words(file: Path) -> list[str]:
    """Return the words of a file of keys; none if it does not exist."""
    return file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else []


def _no_key(what: str) -> RefusedError:
    return NO_KEY.error(
        what=f"no ssh key to sign the bundle with: {what}",
        expected="your own ssh key, or your agent with one",
        fix=Fix("ssh-keygen -t ed25519", f"Or name the key with -e bundle_key=FILE (vllm_bundle_key), {UNSIGNED_FIX}"),
    )


def warnings(key: SigningKey, signers: Path) -> Iterator[str]:
    """Sign nothing with a key, and yield what the operator must know about it. Raises RefusedError if it fails."""
    judgement = judge(b"", key.sign(b""), signers)
    if "-SK " in judgement.key:
        yield f"{judgement.key}: signing with a security key is not tested. Touch it when it blinks"
    if judgement.complaint:
        add = _add(f"{getpass.getuser()}@{socket.gethostname()}", key.print_public(), signers)
        yield (
            f"warning bundle-signer-refused: {signers} does not accept the {judgement.key}: {judgement.complaint} — "
            f"expected: the readers of the bundle accept it. Fix: {add}. Then carry that file with the inventory, not "
            "with the bundle. See docs/runbooks/bundle-signature.md"
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """ssh-keygen's words about a signature of the content: `key` (`ED25519 key SHA256:…`), and the name of the signer
    in allowed_signers or the `complaint`."""

    key: str
    principal: str = ""
    complaint: str = ""


def judge(content: bytes, armor: str, signers: Path) -> Judgement:
    """Verify a signature. Raises KeygenError if it is none of the content for the namespace of bundles."""
    with tempfile.NamedTemporaryFile("w", suffix=".sig") as file:
        file.write(armor)
        file.flush()
        signed = ("-n", NAMESPACE, "-s", file.name)
        key = ssh_keygen("-Y", "check-novalidate", *signed, content=content).strip().rpartition(" with ")[2]
        try:
            principal = ssh_keygen("-Y", "find-principals", "-s", file.name, "-f", signers).partition("\n")[0]
            ssh_keygen("-Y", "verify", "-I", principal, *signed, "-f", signers, content=content)
        except KeygenError as error:
            return Judgement(key, complaint=str(error))
        return Judgement(key, one_line(principal))


def verify(list_file: Path, content: bytes, armor: str, signers: Path) -> str:
    """Return the signer of the list of a bundle, e.g. `anna@laptop (SHA256:…)`. Raises RefusedError."""
    try:
        judgement = judge(content, armor, signers)
    except KeygenError as error:
        raise BROKEN.error(
            what=f"the signature of {list_file} ({len(armor)} characters) does not fit the list "
            f"(sha256 {hashlib.sha256(content).hexdigest()}): {error}",
            expected=f"a signature of this list for the namespace {NAMESPACE!r}",
            fix=f"{COPY_AGAIN} If the copy there is refused too, remove bundle.json there, and run the same command.",
        ) from error
    if judgement.complaint:
        raise SIGNER_REFUSED.error(
            what=f"the bundle is signed with the {judgement.key}, which {signers} does not accept: "
            f"{judgement.complaint}",
            expected=f"a signer that you trust, with a key that is valid today for the namespace {NAMESPACE!r}",
            fix="get KEY.pub from the signer, compare `ssh-keygen -lf KEY.pub` with this fingerprint, then "
            f"`{_add('NAME', 'cat KEY.pub', signers)}`. If {signers} has the key, correct its line instead.",
        )
    return f"{judgement.principal} ({judgement.key.rpartition(' ')[2]})"


def _add(principal: str, print_public: str, signers: Path) -> str:
    """Return the command that adds a key to allowed_signers."""
    return f"""(printf '%s' '{principal} namespaces="{NAMESPACE}" '; {print_public}) >> {signers}"""
