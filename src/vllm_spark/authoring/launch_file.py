"""The servers that a file of others starts: recipes of NVIDIA's catalogue, of eugr and of sparkrun, shell scripts and
compose files.

Each form has a row in FORMS. All of them end in the words behind `vllm serve`, which authoring.imported reads.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from vllm_spark.authoring.shell import UNKNOWN, Shell
from vllm_spark.core import documents, schema, strict_yaml, text
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.node.secret_names import has_form

BAD_IMPORT = register("bad-import", runbook="recipe-new")

KNOWN = strict_yaml.load_own(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
SCHEMA = Path(__file__).with_suffix(".schema.json")
MAX_BYTES = 128 * 1024
# A place of a default. A recipe for `str.format` doubles the braces of everything else.
PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}|\{(\w+)\}")
CONTAINER, SHELL = re.compile(r"(?:.*/)?(docker|podman|nerdctl)"), re.compile(r"(?:.*/)?(ba|z|da)?sh")
# What changes the engine's files before it starts.
CHANGES = re.compile(r"^(sudo )?(patch |git (apply|am) |sed (\S+ )*-\S*i|python\S* .*patch\S*\.py)")
SERVER = re.compile(
    r"(?:.*/)?vllm serve|(?:.*/)?python[\d.]* (?:-u )?-m vllm\.entrypoints\.(?:openai\.api_server|cli\.main(?: serve)?)"
)
# The ranks of a server that are not its head.
WORKERS = re.compile(r" (--headless|--node-rank[= ][1-9])( |$)")
# A recipe of ours has a name too. These keys only a file of others has.
FOREIGN = {"services", "hardware", "container", "recipe_version", "command", "runtime_version"}
COMPOSE = "`docker compose -f {file} config >one.yml` writes one file; import that."


@dataclass(frozen=True, slots=True)
class Launch:
    """A server as its file starts it, before any rule of ours.

    - `words`: those behind `vllm serve`. `model` and `revision` where the form has keys for them
    - `nodes`, `most`: Sparks that the form asks for at least and at most; 0 where it says nothing
    - `version`: of the engine, where the form says it. `figures`: NVIDIA's performance.yaml
    - `notes`: what was left out on the way, each with its reason. `mods`: what changes the engine
    """

    words: Sequence[str] = ()
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[str] = ()
    name: str = ""
    what: str = ""
    model: str = ""
    revision: str = ""
    version: str = ""
    nodes: int = 0
    most: int = 0
    notes: Sequence[str] = ()
    mods: Sequence[str] = ()
    figures: Document = field(default_factory=dict)


def bad(file: Path, what: str, expected: str, fix: str = "") -> RefusedError:
    """Return the refusal of a file."""
    return BAD_IMPORT.error(what=f"{file}: {text.printable(what)}", expected=expected, fix=fix or f"correct {file}.")


def read(file: Path) -> tuple[list[Launch], list[str]]:
    """Return the servers of a file, and a line for each of its services that is none.

    Raises RefusedError for a file of no known form, and for one without a server of vLLM."""
    others: list[str] = []
    try:
        content = documents.read_text(file, MAX_BYTES)
        document = None if _is_script(file, content) else documents.read_yaml(file)
        reads = _script if document is None else next((FORMS[key] for key in FORMS if key in (document or ())), None)
        if reads is None or UNKNOWN in content:
            expected = f"{KNOWN['forms']} or a file of `vllm-spark recipe export`"
            raise bad(file, "no `model` in it", expected, "name another file.")
        found = list(reads(file, _checked(file, document) if document else content, others))
    except DocumentError as error:
        raise bad(file, error.fault.what, error.fault.expected, "name another file.") from error
    except ValueError as error:
        raise bad(file, f"the command cannot be read: {error}", "words and quotes of a shell") from error
    heads = [one for one in found if not WORKERS.search(f" {' '.join(one.words)} ")]
    if not heads:
        seen = f" ({'; '.join(others)})" if others else ""
        fix = f"write the `vllm serve` line with its values into {file}."
        raise bad(file, f"no `vllm serve` in it{seen}", "`vllm serve MODEL` or `docker run IMAGE MODEL`", fix)
    # A script may have the same line twice, for two ranks.
    return list({(*one.words, one.image, one.name): one for one in heads}.values()), others


def _checked(file: Path, document: Any) -> Any:
    """Return a document. Raises RefusedError with every value that no reader could take."""
    if faults := list(schema.faults(document, SCHEMA)):
        raise RefusedError(refusal for fault in faults for refusal in bad(file, fault.what, fault.expected).refusals)
    return document


def _is_script(file: Path, content: str) -> bool:
    return content.startswith("#!") or file.suffix not in {".yml", ".yaml", ".json"}


# --- scripts


def _script(file: Path, content: str, _: list[str]) -> Iterator[Launch]:
    if file.suffix == ".service":
        content = "\n".join(re.findall(r"(?m)^ExecStart=((?:.*\\\n)*.*)", content))
    yield from _servers(file, Shell(content), Launch())


def _servers(file: Path, shell: Shell, around: Launch) -> Iterator[Launch]:
    """Yield the servers that the commands of a script start. `around` has what is known of them from outside."""
    found: list[Launch] = []
    others: list[str] = []
    for words, own in shell.commands():
        line = " ".join(words)
        if line.startswith("--"):
            what = f"the command breaks off before {line[:60]}: a comment or a blank behind the backslash ends its line"
            raise bad(file, what, "a command whose lines hang together")
        if CHANGES.search(line):
            fix = f"read it. What the server needs of it becomes a patch of a recipe; else delete the line in {file}."
            raise bad(file, f"`{line}` changes the engine before it starts", "a launch of unchanged files", fix)
        exported = {name: str(shell.variables[name]) for name in shell.exported if name in shell.variables}
        servers = list(_server(file, words, replace(around, env={**around.env, **exported, **own}), shell))
        found += servers
        # Two words name a command. Behind them may be a token.
        shown = " ".join("…" if has_form(word) else word.replace(UNKNOWN, "$") for word in words[:2])
        others += [] if servers or words[0] in KNOWN["idle"] else [shown]
    said = [f"other commands, which nothing runs: {text.one_line('; '.join(others))}"] if others else []
    yield from (replace(one, notes=[*one.notes, *said]) for one in found)


def _server(file: Path, words: list[str], around: Launch, shell: Shell) -> Iterator[Launch]:
    """Yield the server that the words start, if they do."""
    env = dict(around.env)
    while words and (words[0] in KNOWN["before"] or re.match(r"[A-Za-z_]\w*=", words[0])):
        name, equals, value = words[0].partition("=")
        env |= {name: value} if equals else {}
        words = words[1:]
    first = words[0] if words else ""
    flag = next((at for at, word in enumerate(words) if at and re.fullmatch("-[a-z]*c", word)), 0)
    if CONTAINER.fullmatch(first) and words[1:2] != ["compose"]:
        verb = next((at for at, word in enumerate(words) if word in ("run", "create", "exec")), len(words))
        yield from _docker(file, words[verb:], around, shell)
    elif SHELL.fullmatch(first) and flag:
        given = {str(number): word for number, word in enumerate(words[flag + 2 :])}
        inner = Shell("".join(words[flag + 1 : flag + 2]), {**env, **given, "@": words[flag + 3 :]})
        yield from _servers(file, inner, replace(around, env=env))
    elif match := SERVER.match(" ".join(words)):
        yield replace(around, words=words[len(match[0].split()) :], env=env)


def _docker(file: Path, words: list[str], around: Launch, shell: Shell) -> Iterator[Launch]:
    """Yield the server of `docker run …`, from its verb on."""
    options: dict[str, list[str]] = {}
    at = 1
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        if not (equals or name in KNOWN["without_value"] or re.fullmatch("-[dit]+", words[at])):
            at += 1
            value = "".join(words[at : at + 1])
        options.setdefault(name, []).append(value)
        at += 1
    pairs = [entry.partition("=") for key in ("e", "env") for entry in options.get(key, ())]
    inside = replace(
        around,
        image=around.image or "".join(words[at : at + 1] if words[:1] != ["exec"] else ()),
        env={
            name: value if equals else str(shell.variables.get(name, UNKNOWN + name)) for name, equals, value in pairs
        },
        mounts=[mount for key in ("v", "volume", "mount") for mount in options.get(key, ())],
        notes=[*around.notes, *(f"--env-file {file}: it is not read" for file in options.get("env-file", ()))],
    )
    yield from _in_image(file, [options.get("entrypoint", []), words[at + 1 :]], inside, shell)


def _in_image(file: Path, parts: list[list[str]], around: Launch, shell: Shell) -> Iterator[Launch]:
    """Yield the server of a container with an entrypoint and a command. That of vLLM's own images is `vllm serve`."""
    entrypoint, words = parts
    first = words[0] if words else ""
    # An empty entrypoint takes the image's away.
    found = list(_server(file, [*filter(None, entrypoint), *words], around, shell))
    stock = "vllm" in around.image and not any(entrypoint) and re.match(rf"$|-|serve$|.*[/{UNKNOWN}]", first)
    if not found and (stock or (first == "serve" and UNKNOWN in around.image)):
        found = [replace(around, words=words[first == "serve" :])]
    yield from found


# --- compose files


def _compose(file: Path, document: Document, others: list[str]) -> Iterator[Launch]:
    beside = file.parent / ".env"
    lines = documents.read_text(beside, MAX_BYTES).splitlines() if beside.is_file() else []
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    shell = Shell("", {name.strip(): value.strip().strip("\"'") for name, _, value in pairs})
    for name, service in document["services"].items():
        if "extends" in service:
            raise bad(file, f"services.{name} extends another service", "it in full", COMPOSE.format(file=file))
        found = list(_service(file, service, shell))
        yield from (replace(launch, name=name) for launch in found)
        if not found:
            started = f"{service.get('entrypoint') or ''} {service.get('command') or ''}"
            others.append(f"service {name}: no server of vLLM ({service.get('image')} {text.one_line(started)[:80]})")


def _service(file: Path, service: Document, shell: Shell) -> Iterator[Launch]:
    def filled(value: Any) -> str:
        return shell.filled(str(value), raw=True)[0]

    def words(value: Any) -> list[str]:
        return shlex.split(filled(value)) if isinstance(value, str) else list(map(filled, value or ()))

    given = service.get("environment") or {}
    pairs = given.items() if isinstance(given, Mapping) else (str(entry).partition("=")[::2] for entry in given)
    env = {str(name): filled(value) for name, value in pairs if value is not None}
    mounts = [str(one.get("target") if isinstance(one, Mapping) else one) for one in service.get("volumes") or ()]
    image = filled(service.get("image") or "a build of its owner" * ("build" in service))
    notes = [f"env_file {service['env_file']}: it is not read"] if "env_file" in service else []
    around = Launch(image=image, env=env, mounts=mounts, notes=notes)
    yield from _in_image(file, [words(service.get("entrypoint")), words(service.get("command"))], around, shell)


# --- recipes of others


def _nvidia(file: Path, document: Document, _: list[str]) -> Iterator[Launch]:
    """Read a recipe of NVIDIA/local-ai-inference-recipes, schema 4, and the performance.yaml beside it."""
    runtime, hardware, backend = document["runtime"], document["hardware"], document["backend"]
    if backend != "vllm" or not hardware.startswith("dgx-spark"):
        fix = "choose a recipe of the catalogue for vLLM and dgx-spark."
        raise bad(file, f"backend {backend}, hardware {hardware}", "backend vllm, hardware dgx-spark", fix)
    measured, notes = _performance(file)
    software, image = measured.get("software", {}), runtime["image"]
    digest = str(software.get("runtime_revision", ""))
    limits = "; ".join(map(str, document.get("limitations") or ()))
    title = f"{document.get('title') or document.get('model')} of NVIDIA/local-ai-inference-recipes"
    around = Launch(
        what=f"{title}, which says of it: {limits}" if limits else title,
        version=document.get("backend_version") or "",
        nodes=document["topology"].get("node_count", 1),
        revision=str(software.get("model_revision", "")),
        figures=measured,
    )
    # The setup opens a shell in the container; there the command of `serve` runs.
    setup = runtime.get("setup_command", "").rstrip()
    inside = f"{setup} bash -c {shlex.quote(document['serve']['command'])}" if setup else document["serve"]["command"]
    for launch in _servers(file, Shell(inside), around):
        other = [f"setup_command: it starts {launch.image}; the recipe has runtime.image, {image}"]
        notes = [*notes, *(other if launch.image not in ("", image) else [])]
        yield replace(launch, image=f"{image}@{digest}" if digest.startswith("sha256:") else image, notes=notes)


def _performance(file: Path) -> tuple[Document, list[str]]:
    """Return the figures beside a recipe, if they are of this very text, and a note if they are not."""
    beside = file.with_name("performance.yaml")
    measured = _checked(beside, documents.read_yaml(beside)) if beside.is_file() else {}
    if not measured or measured.get("recipe_sha256") == sha256(file.read_bytes()).hexdigest():
        return measured, []
    return {}, ["performance.yaml: it measured another text of this recipe (recipe_sha256)"]


def _sparkrun(file: Path, document: Document, _: list[str]) -> Iterator[Launch]:
    """Read a recipe of eugr/spark-vllm-docker (version 1) or of sparkrun: a command with places for the defaults."""
    runtime, defaults = document.get("runtime", "vllm"), document.get("defaults") or {}
    if runtime not in KNOWN["runtimes"]:
        expected = f"a runtime of vLLM ({', '.join(KNOWN['runtimes'])})"
        raise bad(file, f"runtime {text.one_line(runtime)}", expected, "choose a recipe for vLLM.")
    values = {"model": document.get("model"), **defaults}
    metadata = document.get("metadata") or {}
    around = Launch(
        what=str(metadata.get("description") or document.get("description") or ""),
        image=document.get("container", ""),
        env={name: str(value) for name, value in (document.get("env") or {}).items()},
        model=document.get("model", ""),
        revision=document.get("model_revision") or "",
        nodes=document.get("min_nodes") or (2 if document.get("cluster_only") else 0),
        most=1 if document.get("solo_only") else document.get("max_nodes") or 0,
        notes=list(_rest(document)),
        mods=list(_mods(document)),
    )
    command = (document.get("command") or "").strip()
    filled = PLACE.sub(lambda place: str(values.get(place[1] or place[2], place[0])), command)
    yield from _servers(file, Shell(filled), around) if command else [replace(around, words=list(_as_words(defaults)))]


def _mods(document: Document) -> Iterator[str]:
    """Yield what changes the engine: the mods of a recipe, and changes of vLLM that its image is built with."""
    yield from (text.one_line(f"mod {mod}") for mod in document.get("mods") or ())
    built = " ".join(map(str, document.get("build_args") or ()))
    yield from (text.one_line(f"build_args {change}") for change in re.findall(r"--apply-\S+ \S+", built))


def _as_words(defaults: Document) -> Iterator[str]:
    for key, value in defaults.items():
        yield f"--{'no-' * (value is False)}{key.replace('_', '-')}"
        if not isinstance(value, bool):
            yield json.dumps(value) if isinstance(value, dict | list) else str(value)


def _rest(document: Document) -> Iterator[str]:
    """Yield what of a recipe has no counterpart here."""
    yield from (f"{key}: {reason}" for key, reason in KNOWN["reasons"].items() if document.get(key))
    odd = set(document) - set(KNOWN["read"]) - set(KNOWN["reasons"])
    yield from (f"{text.one_line(key)}: not known here" for key in sorted(odd))


# The key by which a form is known -> its reader. A script has no keys.
FORMS: Mapping[str, Callable[[Path, Any, list[str]], Iterator[Launch]]] = {
    "services": _compose,
    "hardware": _nvidia,
    **dict.fromkeys(("container", "runtime", "model"), _sparkrun),
}
