"""The operator's ssh key signs the list of a bundle, and ssh-keygen verifies the signature. Standard library only.

ssh-keygen -Y needs OpenSSH 8.2 or later. The format of a signature is PROTOCOL.sshsig of OpenSSH.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core.own_process import Log
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.text import one_line

BROKEN = register("bundle-signature", runbook="bundle-signature")
NAMESPACE_DIFFERS = register("bundle-signature-namespace", runbook="bundle-signature")
LIST_CHANGED = register("bundle-list-changed", runbook="bundle-signature")
SIGNER_UNKNOWN = register("bundle-signer-unknown", runbook="bundle-signature")
SIGNER_REFUSED = register("bundle-signer-refused", runbook="bundle-signature")
NO_SIGNERS = register("bundle-no-signers", runbook="bundle-signature")
NO_SSH_KEYGEN = register("bundle-no-ssh-keygen", runbook="bundle-signature")
NO_KEY = register("bundle-no-key", runbook="bundle-signature")
KEY_FAILED = register("bundle-key", runbook="bundle-signature")

NAMESPACE = "vllm-spark-bundle"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
MAGIC, VERSION = b"SSHSIG", 1
# What ssh-keygen prints before its message. OpenSSH 10 names the key.
PROMPTS = re.compile(r'Signing data on standard input|Enter passphrase(?: for "[^"]*")?:')
TIMEOUT_S = 60.0
# The default files of ssh (ssh(1), -i), those of a security key last.
DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
COPY_AGAIN = "copy files.sha256, files.sha256.sig and bundle.json of the bundle again from the machine that wrote it."
SIGN_AGAIN = "remove bundle.json where the bundle was written, and run the same pull.yml there again."
UNSIGNED_FIX = "or write it with -e bundle_unsigned=true, which the reader must then accept with the same option."


class KeygenError(Exception):
    """ssh-keygen or ssh-add failed. The text is its message."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a signature says about itself. `key` is the public key in base64."""

    key: str
    key_type: str
    namespace: str

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.key)).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def parse(armor: str) -> Signature:
    """Return the content of an armored signature. Raises ValueError."""
    lines = armor.strip().splitlines()
    if not lines or lines[0] != BEGIN:
        raise ValueError(f"it does not begin with {BEGIN}")
    if lines[-1] != END:
        raise ValueError(f"it does not end with {END}")
    blob = base64.b64decode("".join(lines[1:-1]), validate=True)
    if blob[:6] != MAGIC or int.from_bytes(blob[6:10]) != VERSION:
        raise ValueError(f"it is not version {VERSION} of {MAGIC.decode()}")
    fields, at = [], 10
    while at < len(blob):
        size = int.from_bytes(blob[at : at + 4])
        if at + 4 + size > len(blob):
            raise ValueError(f"{len(blob)} bytes, {at + 4 + size} are expected")
        fields.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    if len(fields) != 5:  # noqa: PLR2004  public key, namespace, reserved, hash algorithm, signature
        raise ValueError(f"it has {len(fields)} fields, 5 are expected")
    key, namespace = fields[0], fields[1]
    key_type = key[4 : 4 + int.from_bytes(key[:4])]
    return Signature(base64.b64encode(key).decode(), one_line(key_type.decode()), one_line(namespace.decode()))


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
            expected="a key that signs without a question: a passphrase is asked by ssh-add, not by pull.yml",
            fix=Fix(add, f"Then the same command. Or name another key with -e bundle_key=FILE, {UNSIGNED_FIX}"),
        )


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


def warnings(signature: Signature, signers: Path, principal: str) -> Iterator[str]:
    """Yield what the operator must know about the key of a signature."""
    if signature.key_type.startswith("sk-"):
        yield f"{signature.key_type}: signing with a security key is not tested. Touch it when it blinks"
    if signature.key not in _words(signers):
        line = f'{principal} namespaces="{NAMESPACE}" {signature.key_type} {signature.key}'
        yield (
            f"warning bundle-signer-unknown: {signers} does not have this key, {signature.fingerprint} — expected: the "
            f"readers of the bundle accept it. Fix: echo '{line}' >> {signers}. Then carry that file with the "
            "inventory, not with the bundle. See docs/runbooks/bundle-signature.md"
        )


def verify(list_file: Path, content: bytes, armor: str, signers: Path) -> str:
    """Return the signer of the list of a bundle, e.g. `anna@laptop (SHA256:…)`. Raises RefusedError."""
    try:
        signature = parse(armor)
    except ValueError as error:
        what = f"the signature of {list_file} ({len(armor)} characters) is truncated or damaged: {error}"
        raise BROKEN.error(what=what, expected="a complete SSH signature", fix=COPY_AGAIN) from error
    if signature.namespace != NAMESPACE:
        what = f"{list_file} is signed for the namespace {signature.namespace!r} with {signature.fingerprint}"
        raise NAMESPACE_DIFFERS.error(what=what, expected=f"the namespace {NAMESPACE!r}", fix=SIGN_AGAIN)
    with tempfile.NamedTemporaryFile("w", suffix=".sig") as file:
        file.write(armor)
        file.flush()
        try:
            ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", file.name, content=content)
        except KeygenError as error:
            sha256 = hashlib.sha256(content).hexdigest()
            what = f"{list_file} (sha256 {sha256}) is not what {signature.fingerprint} signed: {error}"
            raise LIST_CHANGED.error(what=what, expected="the list that was signed", fix=COPY_AGAIN) from error
        return f"{_principal(file.name, content, signature, signers)} ({signature.fingerprint})"


def _principal(file: str, content: bytes, signature: Signature, signers: Path) -> str:
    """Return the name of a signer in allowed_signers. `file` has the signature. Raises RefusedError."""
    if not signers.is_file():
        what = f"{signers} does not exist, so the signer {signature.fingerprint} is not known"
        expected = "an allowed_signers file with the keys that you trust"
        raise NO_SIGNERS.error(what=what, expected=expected, fix=_allow(signers))
    try:
        found = ssh_keygen("-Y", "find-principals", "-s", file, "-f", signers).splitlines()
        principal = (found or ["*"])[0]
        words = ("-Y", "verify", "-I", principal, "-n", NAMESPACE, "-s", file, "-f", signers)
        ssh_keygen(*words, content=content)
    except KeygenError as error:
        raise _untrusted(signature, signers, str(error)) from error
    return one_line(principal)


def _untrusted(signature: Signature, signers: Path, message: str) -> RefusedError:
    if signature.key in _words(signers):
        what = f"{signers} has the key {signature.fingerprint} but does not accept it now: {message}"
        expected = f"a key that is valid today for the namespace {NAMESPACE!r}"
        return SIGNER_REFUSED.error(what=what, expected=expected, fix=f"correct its line in {signers}, or {SIGN_AGAIN}")
    key = f"{signature.key_type} {signature.fingerprint}"
    what = f"the bundle is signed with {key}, which is not in {signers}: {message}"
    return SIGNER_UNKNOWN.error(what=what, expected="a signer that you trust", fix=_allow(signers))


def _allow(signers: Path) -> str:
    add = f"""(printf '%s' 'NAME namespaces="{NAMESPACE}" '; cat KEY.pub) >> {signers}"""
    return f"get KEY.pub from the signer, compare `ssh-keygen -lf KEY.pub` with this fingerprint, then `{add}`."
