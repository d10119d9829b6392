"""The operator's key that signs a bundle: the named one, one of the agent, or the default one of ssh."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.transfer import bundle_signature
from vllm_spark.transfer.bundle_files import Log
from vllm_spark.transfer.bundle_signature import KeygenError, Signature

NO_KEY = register("bundle-no-key", runbook="bundle-signature")
KEY_FAILED = register("bundle-key", runbook="bundle-signature")

# The default files of ssh (ssh(1), -i), those of a security key last.
DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
UNSIGNED_FIX = "or write it with -e bundle_unsigned=true, which the reader must then accept with the same option."


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key file, or `TYPE BASE64` of a key of the agent."""

    name: str
    file: Path | None = None
    public: str = ""

    def sign(self, content: bytes) -> str:
        """Return the armored signature. Raises RefusedError."""
        try:
            with self._key_file() as file:
                return bundle_signature.sign(content, file)
        except KeygenError as error:
            raise self._failed(str(error)) from error

    @contextmanager
    def _key_file(self) -> Iterator[Path]:
        """Yield the file for ssh-keygen. It finds a key of the agent by its public key."""
        if self.file:
            yield self.file
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "key.pub"
            file.write_text(f"{self.public}\n", encoding="utf-8")
            yield file

    def _failed(self, message: str) -> RefusedError:
        add = f'eval "$(ssh-agent)"; ssh-add {str(self.file).removesuffix(".pub")}' if self.file else "ssh-add"
        return KEY_FAILED.error(
            what=f"{self.name} does not sign: {message}",
            expected="a key that signs without a question: a passphrase is asked by ssh-add, not by pull.yml",
            fix=f"{add}; then the same command. Or name another key with -e bundle_key=FILE, {UNSIGNED_FIX}",
        )


def find(named: str, signers: Path, log: Log) -> SigningKey:
    """Return the named key, or the first of the agent and of ~/.ssh, one of allowed_signers before all others.

    Raises RefusedError.
    """
    if named:
        return _named(Path(named).expanduser())
    keys = [*_agent_keys(), *_default_keys()]
    if not keys:
        raise _no_key(f"there is no key in the agent and none of ~/.ssh/{', '.join(DEFAULT_NAMES)}")
    accepted = signers.read_text(encoding="utf-8", errors="replace").split() if signers.is_file() else []
    key = next((key for key in keys if key.public.partition(" ")[2] in accepted), keys[0])
    log(f"the bundle will be signed with {key.name}")
    return key


def warnings(signature: Signature, signers: Path, principal: str) -> Iterator[str]:
    """Yield what the operator must know about the key of a signature."""
    if signature.key_type.startswith("sk-"):
        yield f"{signature.key_type}: signing with a security key is not tested. Touch it when it blinks"
    if not signers.is_file() or signature.key not in signers.read_text(encoding="utf-8", errors="replace").split():
        line = bundle_signature.allowed_line(signature, principal)
        yield (
            f"warning bundle-signer-unknown: {signers} does not have this key, {signature.fingerprint} — expected: the "
            f"readers of the bundle accept it. Fix: echo '{line}' >> {signers}; then carry that file with the "
            "inventory, not with the bundle. See docs/runbooks/bundle-signature.md"
        )


def _named(file: Path) -> SigningKey:
    if not file.is_file():
        raise _no_key(f"bundle_key names {file}, which is not a file")
    return SigningKey(str(file), file)


def _agent_keys() -> Sequence[SigningKey]:
    try:
        lines = bundle_signature.ssh_keygen("-L", program="ssh-add").splitlines()
    except KeygenError:  # also if there is no agent, or if it has no keys
        return []
    keys = [line.split() for line in lines if line.startswith(KEY_TYPES) and "-cert-" not in line.split()[0]]
    return [SigningKey(f"the agent's key {' '.join(key[2:]) or key[0]}", None, " ".join(key[:2])) for key in keys]


def _default_keys() -> Iterator[SigningKey]:
    for name in DEFAULT_NAMES:
        file = Path.home() / ".ssh" / name
        if file.is_file():
            public = file.with_suffix(".pub")
            words = public.read_text(encoding="utf-8", errors="replace").split() if public.is_file() else []
            yield SigningKey(str(file), file, " ".join(words[:2]))


def _no_key(what: str) -> RefusedError:
    return NO_KEY.error(
        what=f"no ssh key to sign the bundle with: {what}",
        expected="your own ssh key, or your agent with one",
        fix=f"ssh-keygen -t ed25519; or name the key with -e bundle_key=FILE (vllm_bundle_key); {UNSIGNED_FIX}",
    )
