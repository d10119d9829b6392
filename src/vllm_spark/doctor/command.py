"""`vllm-spark doctor`: findings in logs of the engine, Ray, NCCL, the kernel and Docker, root cause first."""

from __future__ import annotations

import argparse
import errno
import json
import shlex
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from vllm_spark.core import json_output
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.run_command import typed
from vllm_spark.core.text import printable
from vllm_spark.doctor import diagnosis, failure_lines, last_words, reading
from vllm_spark.doctor.findings import LINE_LIMIT, Finding, Judgement, log_line
from vllm_spark.doctor.last_words import LastWord
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.log_lines import ByteStream, blocks
from vllm_spark.doctor.places import NOWHERE, Place
from vllm_spark.node.deployment_state import json_object

LOG_UNREADABLE = register("log-unreadable", runbook="log-unreadable")

STANDARD_INPUT = "-"
KERNEL_LOG = failure_lines.FIXES["kernel_log"]
WHOLE_RUN = Fix("ssh USER@ADDRESS journalctl -u vllm@NAME -o cat --no-pager | vllm-spark doctor -")
BUNDLE_SUFFIX = ".tar.gz"  # of a bundle of `collect`
LOG_SUFFIX = ".log"  # of the logs in it
MANIFEST = "manifest.json"
MOST_OF_A_TEXT = 1 << 20  # bytes of a manifest or a state that are read
# Exit statuses; 0 is a log without a finding.
FAILURE = 1
UNREADABLE = 2
WARNINGS = 3
UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the doctor reads of one input: its logs, and of a bundle the last words of the toolkit."""

    logs: list[Log]
    words: list[LastWord] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "logs",
        nargs="*",
        metavar="LOG",
        default=[STANDARD_INPUT],
        help="files, or bundles of collect; - is standard input, the default",
    )
    parser.add_argument("--json", action="store_true", help="for programs: docs/reference/json.md")


def run(args: argparse.Namespace) -> int:
    """Print the findings. Returns the exit status: 0 for a sound log, 1 for a failure, 2 for an unreadable log, 3 for
    warnings only, 4 for a log that shows neither a failure nor a server that serves."""
    words: list[LastWord] = []
    logs: list[Log] = []
    try:
        for name in args.logs:
            bundle = read_bundle(name) if name.endswith(BUNDLE_SUFFIX) else Bundle([read(name)])
            logs += bundle.logs
            words += bundle.words
    except OSError as error:
        what = f"{error.filename}: {error.strerror}"
        as_root = Fix(f"sudo cat {shlex.quote(str(error.filename))} | vllm-spark doctor -", "Or name another file.")
        fix = as_root if error.errno == errno.EACCES else "name another file."
        return _refuse(LOG_UNREADABLE(what=what, expected="a readable log", fix=fix), as_json=args.json)
    except reading.NotTextError as error:
        refusal = LOG_UNREADABLE(what=error.what, expected="the text of a log", fix=error.fix)
        return _refuse(refusal, as_json=args.json)
    judgement = diagnosis.judge(logs)
    if args.json:
        body = {"states": [word.to_json() for word in words], **to_json(judgement, logs)}
        print(json_output.text(json_output.document("doctor", body)))
    else:
        print("\n".join([*(printable(word.line()) for word in words), *lines(judgement, logs)]))
    return UNKNOWN if unknown(judgement, logs) else status(judgement)


def _refuse(refusal: Refusal, *, as_json: bool) -> int:
    print(refusal, file=sys.stderr)
    if as_json:
        print(json_output.text(json_output.refused("doctor", [refusal])))
    return UNREADABLE


def status(judgement: Judgement) -> int:
    """Return the exit status for findings."""
    return FAILURE if judgement.failed else WARNINGS if judgement.findings else 0


def unknown(judgement: Judgement, logs: Sequence[Log]) -> bool:
    """Return True if the logs show neither a finding nor a server that serves, as a log that is cut or empty does."""
    engines = [log for log in logs if log.engine]
    served = any(log.served for log in engines)
    return bool(engines) and not served and not judgement.findings and not judgement.unrecognised


def read(name: str) -> Log:
    """Diagnose one log. Raises OSError if it cannot be read, and NotTextError if it is not text."""
    title = "standard input" if name == STANDARD_INPUT else name
    try:
        with _opened(name) as stream:
            return judged(title, reading.text_of(stream))
    except reading.NotTextError as error:
        named = error.fix.format(file=shlex.quote(name)) if isinstance(error.fix, Fix) else error.fix
        raise reading.NotTextError(f"{title}: {error.what}", named) from error


def judged(name: str, stream: ByteStream, *, engine: bool = True, place: Place = NOWHERE) -> Log:
    """Diagnose a log from a stream of text. Findings carry `name` as its file. `engine` and `place` are those of
    Log."""
    log = Log(name, engine, place)
    for block in blocks(stream):
        log.read(block)
    return log


def read_bundle(name: str) -> Bundle:
    """Diagnose the logs of a bundle of `collect`, in the order of the archive. Raises OSError if it cannot be read."""
    logs: list[Log] = []
    texts: dict[str, str] = {}
    try:
        with tarfile.open(name, "r|gz") as archive:
            for member in archive:
                is_log = member.name.endswith(LOG_SUFFIX)
                if not is_log and member.name != MANIFEST and not last_words.STATE.fullmatch(member.name):
                    continue
                stream = archive.extractfile(member)
                if stream and is_log:
                    # The manifest comes before the logs.
                    place = place_of(member.name, places_of(texts.get(MANIFEST, "")))
                    engine = is_engine_log(member.name)
                    logs.append(judged(f"{name}/{member.name}", cast(BinaryIO, stream), engine=engine, place=place))
                elif stream:
                    texts[member.name] = stream.read(MOST_OF_A_TEXT).decode("utf-8", "replace")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"not a complete bundle ({error})", name) from error
    if not logs:
        raise OSError(errno.ENODATA, "a bundle without a log", name)
    host = str(json_object(texts.get(MANIFEST, "")).get("inventory_host") or "a Spark")
    words = [LastWord(host, deployment, state) for deployment, state in last_words.of_files(texts.items()).items()]
    return Bundle(logs, words)


def places_of(manifest: str) -> Mapping[str, Place]:
    """Return the places of a bundle by their deployments, from its manifest. That of an older toolkit has none."""
    try:
        return {name: Place(**place) for name, place in json.loads(manifest)["places"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def place_of(path: str, places: Mapping[str, Place]) -> Place:
    """Return where a log of a bundle is from. A log of the host is of its deployment, if it has one alone."""
    name = path.split("/")[1] if path.startswith("deployments/") else next(iter(places)) if len(places) == 1 else ""
    return places.get(name, NOWHERE)


def is_engine_log(path: str) -> bool:
    """Return True for a log of an engine by its path in a bundle, False for one of the host or of another unit."""
    return not path.startswith("host/") and not path.endswith("/liveness.log")


def lines(judgement: Judgement, logs: Sequence[Log]) -> Iterator[str]:
    """Yield the findings as lines for the operator. What a log says cannot change the terminal."""
    return map(printable, _lines(judgement, logs))


def _lines(judgement: Judgement, logs: Sequence[Log]) -> Iterator[str]:
    read_lines = sum(log.lines for log in logs)
    amount = f"{read_lines} line{'s' * (read_lines != 1)} of {len(logs)} log{'s' * (len(logs) != 1)}"
    if unknown(judgement, logs):
        whole_run = next(log.place for log in logs if log.engine).fill(str(WHOLE_RUN))
        if not read_lines:
            yield f"unknown: {amount}, so nothing was read — expected: the log of a whole run."
            yield f"   Fix: {whole_run}"
            return
        yield f"unknown: {amount}, with neither a failure nor a server that serves — expected: the log of a whole run."
        yield f"   Fix: {whole_run}"
        yield f"   A process that was killed leaves no line in its own log: {KERNEL_LOG}"
        return
    if not judgement.findings and not judgement.unrecognised:
        stops = [f"{log.file}:{log.stopped}" for log in logs if log.stopped]
        stopped = [f"the server was stopped from outside: {', '.join(stops)}"] if stops else []
        empty = [f"{log.file} is empty" for log in logs if not log.lines]
        refused = [log.refusals for log in logs if log.refusals]
        notes = [f"note: {note}" for log in logs for note in log.notes]
        yield "; ".join([f"no finding in {amount}", *stopped, *refused, *empty, *notes])
        return
    fatal = [finding for finding in judgement.findings if finding.severity != "warning"]
    yield from _numbered(fatal, 1)
    if judgement.unrecognised:
        yield "Not recognised:"
        for finding in judgement.unrecognised:
            yield f" - {finding.cause}, {_where(finding)}: {log_line(finding)}"
            yield from (f"     before it: {line[:LINE_LIMIT]}" for line in finding.before)
        yield _fix(judgement.unrecognised[0])
    yield from _numbered([finding for finding in judgement.findings if finding.severity == "warning"], len(fatal) + 1)
    yield f"read {amount}"


def _numbered(findings: Sequence[Finding], first: int) -> Iterator[str]:
    for place, finding in enumerate(findings, first):
        yield f"{place}. {finding.cause}"
        yield f"   {finding.severity} {finding.signature}, {_where(finding)}: {log_line(finding)}"
        yield _fix(finding)


def _fix(finding: Finding) -> str:
    return typed(f"   Fix: {finding.fix} See docs/runbooks/{finding.runbook}")


def to_json(judgement: Judgement, logs: Sequence[Log]) -> dict[str, Any]:
    """Return the same as JSON: `findings` and `unrecognised` in their order, whether the result is unknown, and the
    number of lines of each log."""
    return {
        "unknown": unknown(judgement, logs),
        "findings": [asdict(finding) for finding in judgement.findings],
        "unrecognised": [asdict(finding) for finding in judgement.unrecognised],
        "logs": [{"file": log.file, "lines": log.lines} for log in logs],
    }


def _where(finding: Finding) -> str:
    times = f" and {finding.count - 1} more" if finding.count > 1 else ""
    return f"{finding.file}:{finding.number}{times}"


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as stream:
        yield stream
