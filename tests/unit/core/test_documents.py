"""Documents of an operator: what YAML and JSON accept and the toolkit refuses, each with its place."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.core import documents, paths, plain_data, schema, strict_yaml
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.inventory import deployment

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

# text -> a part of the message
YAML = {
    "a: 1\nb: 2\na: 3\n": "line 3, column 1: key a occurs twice — expected: every key once; the first is in line 1",
    "args:\n  max-model-len: 1\n  max-model-len: 2\n": "line 3, column 3: key max-model-len occurs twice",
    "a: 1\n8000: b\n": "line 2, column 1: key 8000 is not a text — expected: a text as key: put it in quotes",
    "on: b\n": "line 1, column 1: key on is not a text",
    "? [a]\n: b\n": "line 1, column 3: a list or a map as key is not a text",
    "a: 1\nb: .nan\n": "line 2, column 4: nan — expected: a finite number",
    "a: -.inf\n": "line 1, column 4: -inf — expected: a finite number",
    "a: 1.0e+999\n": "line 1, column 4: inf — expected: a finite number",
    f"a: {'9' * 5000}\n": "— expected: a number",
    f"a: {'9' * 40}\n": "line 1, column 4: an integer of 133 bits — expected: an integer of at most 63 bits",
    "a: !!binary aGk=\n": "line 1, column 4: a value of type binary",
    "a: !!timestamp 2026-01-01\n": "line 1, column 4: a value of type timestamp",
    "a: !!python/object:os.system {}\n": "line 1, column 4: a value of type python/object:os.system",
    "a: !!int lots\n": "line 1, column 4: lots is not int",
    'a: "\\0"\n': "has a NUL character",
    'a: "\\ud800"\n': "not YAML, found invalid Unicode character escape code",
    LAUGHS: "more than 20000 values, aliases in full",
    "a: &a [*a]\n": "line 1, column 8: alias *a is inside its own anchor",
    f"a: {'[' * 500}\n": "line 1, column 35: nested deeper than 32 levels",
    f"a: {'{b: ' * 500}\n": "line 1, column 125: nested deeper than 32 levels",
    f"a: [{', '.join(['1'] * 30_000)}]\n": "more than 20000 values",
    "a: {unclosed\n": "not YAML",
    "a: 1\n---\nb: 2\n": "not YAML, but found another document",
    "a: \x07\n": "not YAML: unacceptable character",
}


@pytest.mark.parametrize("text", YAML, ids=lambda text: text[:24])
def test_yaml_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(DocumentError) as refused:
        strict_yaml.load(text)
    assert YAML[text] in str(refused.value)


@pytest.mark.parametrize("file", sorted(paths.RECIPES.glob("*.yml"))[::6], ids=lambda file: file.stem)
def test_the_parser_in_python_reads_the_same(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert strict_yaml.load(text) == json.loads(json.dumps(yaml.load(text, yaml.CSafeLoader), default=str))


def test_many_open_brackets_do_not_overflow_the_stack() -> None:
    with pytest.raises(DocumentError, match="line 1, column 33: nested deeper than 32 levels"):
        strict_yaml.load("[" * 100_000)


def test_aliases_and_merge_keys_are_allowed() -> None:
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nagain: *base\n"
    base = {"a": 1, "b": 2}
    assert strict_yaml.load(text) == {"base": base, "use": {"a": 1, "b": 3}, "again": base}


def test_a_text_is_parsed_once_and_no_caller_changes_what_the_next_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "host: {names: [a, b], load: 0.1, großer: 9223372036854775807}\nempty:\n"
    first = strict_yaml.load(text)
    monkeypatch.setattr(strict_yaml, "StrictLoader", None)
    first["host"]["names"].append("c")
    first["host"]["load"] = 2
    del first["empty"]
    again = strict_yaml.load(text)
    assert again == {"host": {"names": ["a", "b"], "load": 0.1, "großer": 9223372036854775807}, "empty": None}
    assert again["host"] is not strict_yaml.load(text)["host"]


@pytest.mark.parametrize("text", ["1.0", "1e-5", "-0.0", "1e16", "'\\ud83d'", "[]", "{}", "'\\n\\t'", "~", "12:30:45"])
def test_a_value_keeps_its_type_and_every_digit(text: str) -> None:
    value = strict_yaml.load(text)
    assert repr(value) == repr(yaml.load(text, strict_yaml.StrictLoader))  # noqa: S506  a SafeLoader


def test_a_date_without_quotes_is_a_text() -> None:
    assert strict_yaml.load("date: 2026-01-31") == {"date": "2026-01-31"}


# name -> (content of the file, a part of the message)
FILES: dict[str, tuple[bytes, str]] = {
    "UTF-16": ("a: 1\n".encode("utf-16"), "the encoding is UTF-16 — expected: UTF-8"),
    "UTF-16 without a mark": ("a: 1\n".encode("utf-16-le"), "line 1: a NUL byte"),
    "latin-1": ("a: 1\nb: caf\xe9\n".encode("latin-1"), "line 2: byte 0xe9 is not UTF-8"),
    "NUL": (b"a: 1\nb: \0\n", "line 2: a NUL byte"),
    "too long": (b"# " + b"x" * (200 << 10), "more than 128 KiB"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_utf_8_is_refused(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    file = tmp_path / "file.yml"
    file.write_bytes(content)
    with pytest.raises(DocumentError) as refused:
        documents.read_yaml(file)
    assert message in str(refused.value)


def test_a_mark_of_utf_8_is_allowed_and_an_empty_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file.yml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert documents.read_yaml(file) == {"a": 1}
    file.write_bytes(b"")
    assert documents.read_yaml(file) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file.mkdir(), "a folder — expected: a file"),
        (lambda file: None, "cannot be read: No such file or directory"),
        (lambda file: file.symlink_to(file), "cannot be read: Too many levels of symbolic links"),
    ],
    ids=["folder", "absent", "link to itself"],
)
def test_a_path_without_a_file_is_refused(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    make(tmp_path / "file.yml")
    with pytest.raises(DocumentError) as refused:
        documents.read_yaml(tmp_path / "file.yml")
    assert message in str(refused.value)


JSON = {
    '{"a": 1, "a": 2}': "key a occurs twice",
    '{"a": NaN}': "NaN — expected: a finite number",
    '{"a": 1e999}': "inf — expected: a finite number",
    '{"a": ': "line 1, column 7: not JSON",
    "[" * 100_000: "nested too deep",
    "[" * 100 + "]" * 100: "nested deeper than 32 levels",
    f'{{"a": {"9" * 5000}}}': "too many digits",
    '{"a": "\\ud800"}': "half of a surrogate pair",
}


@pytest.mark.parametrize("text", JSON, ids=lambda text: text[:24])
def test_json_is_refused(text: str) -> None:
    with pytest.raises(DocumentError) as refused:
        documents.json_document(text)
    assert JSON[text] in str(refused.value)


class Tagged(str):
    """A subclass of str, as Ansible's templating returns."""


class Count(int):
    """A subclass of int."""


def test_plain_data_has_built_in_types_alone() -> None:
    copy = plain_data.plain({Tagged("a"): [Tagged("b"), Count(3), 2.5, True, None], "c": (1,)})
    assert copy == {"a": ["b", 3, 2.5, True, None], "c": [1]}
    assert [type(value) for value in (next(iter(copy)), *copy["a"])] == [str, str, int, float, bool, type(None)]


DEMO = {"name": "mine", "recipe": "everything", "hosts": ["spark1"]}
# change of the second deployment -> a part of the message
DEPLOYMENTS: list[tuple[dict[Any, Any], str]] = [
    ({"port": 80000}, "deployment mine: port: 80000 — expected: at most 65535"),
    ({"port": 8000.0}, "deployment mine: port: 8000.0 — expected: a whole number"),
    ({"port": True}, "deployment mine: port: true — expected: a whole number"),
    ({"port": Tagged("8000")}, 'deployment mine: port: "8000" — expected: a whole number'),
    ({"hosts": []}, "deployment mine: hosts: [] — expected: at least 1 entry"),
    ({"hosts": "spark1"}, 'deployment mine: hosts: "spark1" — expected: a list'),
    ({"name": ""}, 'vllm_deployments: entry 2: name: "" — expected: lower-case words joined by single dashes'),
    ({"name": "x" * 60}, "expected: at most 48 characters"),
    ({8000: "port"}, "deployment mine: key 8000 is a number — expected: a text as key"),
    ({"port": float("nan")}, "deployment mine: port: nan — expected: a finite number"),
    ({"name": "mine\n"}, "vllm_deployments: entry 2: name"),
    ({"bind": "999.1.1.1"}, 'deployment mine: bind: "999.1.1.1" — expected: an IPv4 address'),
    ({"through": {"url": "http://router:99999"}}, "deployment mine: through.url: http://router:99999"),
    ({"overrides": {"env": {"A-B": "1"}}}, 'deployment mine: overrides.env: key "A-B" — expected: text like'),
    ({"recipe": datetime.date(2026, 1, 31)}, "deployment mine: recipe: 2026-01-31, which is a date — expected: a text"),
]


@pytest.mark.parametrize(("change", "message"), DEPLOYMENTS, ids=lambda value: str(value)[:30])
def test_a_fault_names_the_deployment(change: dict[Any, Any], message: str) -> None:
    other = {**DEMO, "name": "other", "hosts": ["spark2"]}
    with pytest.raises(deployment.RefusedError) as refused:
        deployment.parse([other, {**DEMO, **change}])
    assert message in str(refused.value)
    for words in ("is greater than", "is too short", "non-empty", "not supported between", "_Ansible"):
        assert words not in str(refused.value)


def test_deployments_that_are_no_list_are_refused_with_what_is_expected() -> None:
    with pytest.raises(deployment.RefusedError, match=r'vllm_deployments: "mine" — expected: a list\. Fix'):
        deployment.parse("mine")


def test_missing_keys_are_one_fault() -> None:
    (fault,) = schema.faults([{"name": "mine"}], deployment.SCHEMA)
    assert str(fault) == "[0]: missing keys recipe, hosts — expected: name, recipe, hosts"


def test_an_integer_of_a_schema_is_an_int() -> None:
    faults = [str(fault) for fault in schema.faults([{**DEMO, "port": 9000.0}], deployment.SCHEMA)]
    assert faults == ["[0].port: 9000.0 — expected: a whole number"]
