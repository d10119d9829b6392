"""No secret is left in the texts of `collect`, and a short secret does not mask other text."""

from __future__ import annotations

import base64
import json
import random
import re
import shlex
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_secrets
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import MASK, Secrets

KEY = 'hid/den "va+lue" of<a>te\'st&1'


def masked(text: str, *pairs: tuple[str, str], learn: str = "") -> str:
    """Return the text without secrets. `pairs` are known secrets, `learn` is another text of the same host."""
    secrets = Secrets()
    secrets.add(pairs)
    secrets.learn(text)
    secrets.learn(learn)
    return secrets.masker()(text)


FORMS = {
    "plain": KEY,
    "in a word": f"xx{KEY}yy",
    "json": json.dumps({"a": KEY}),
    "json in json": json.dumps(json.dumps({"a": KEY})),
    "go's json": json.dumps(KEY).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    "python": repr([KEY]),
    "url": f"http://host/a?x={quote(KEY, safe='')}&b=1",
    "url with slashes": f"http://host/{quote(KEY)}",
    "form": f"x={quote_plus(KEY)}",
    "url in lower case": re.sub("%..", lambda match: match[0].lower(), quote(KEY, safe="")),
    "shell": shlex.join(["env", f"A={KEY}"]),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_known_value_is_masked_in_every_form(text: str) -> None:
    result = masked(text, ("VLLM_API_KEY", KEY))
    assert MASK in result
    assert "den" not in result.replace("hidden", "")
    assert "lue" not in result


@pytest.mark.parametrize("user", ["", "u", "us", "use", "user"])
def test_basic_authentication(user: str) -> None:
    value = "correct-horse-battery"
    encoded = base64.b64encode(f"{user}:{value}".encode()).decode()
    result = masked(f"sent {encoded} to the proxy", ("PROXY_PASSWORD", value))
    assert MASK in result
    # The rest contains no three consecutive letters of the value.
    assert len(result) <= len(f"sent {MASK} to the proxy") + len(encoded) - len(value) * 4 // 3 + 2


# text -> the masked text, without known secrets
BESIDE = {
    "HF_TOKEN=abcdef0123": "HF_TOKEN=<masked>",
    "RAY_AUTH_TOKEN='abc def' rest": "RAY_AUTH_TOKEN='<masked>' rest",
    '{"VLLM_API_KEY": "a b", "port": 1}': '{"VLLM_API_KEY": "<masked>", "port": 1}',
    '"{\\"api_key\\": \\"abc\\", \\"n\\": 1}"': '"{\\"api_key\\": \\"<masked>\\", \\"n\\": 1}"',
    "non-default args: {'api_key': ['abc'], 'port': 1}": "non-default args: {'api_key': ['<masked>'], 'port': 1}",
    "Namespace(api_key=abc, port=1)": "Namespace(api_key=<masked>, port=1)",
    "Namespace(hf_token='abc', port=1)": "Namespace(hf_token='<masked>', port=1)",
    "vllm serve --api-key abc --port 1": "vllm serve --api-key <masked> --port 1",
    "vllm serve --api-key=abc --port 1": "vllm serve --api-key=<masked> --port 1",
    '["--api-key",\n  "abc", "--port"]': '["--api-key",\n  "<masked>", "--port"]',
    "token HF_TOKEN=abcdef0123 was read": "token HF_TOKEN=<masked> was read",
    "https://user:abc@host/x": "https://user:<masked>@host/x",
    "GET /v1/models?api_key=abc&n=1 200": "GET /v1/models?api_key=<masked>&n=1 200",
    "Authorization: Bearer abc.def": "Authorization: Bearer <masked>",
    '"authorization": "Basic YTpi"': '"authorization": "Basic <masked>"',
    "db_password: abc def": "db_password: <masked>",
    "got hf_aaaaaaaaaabbbbbbbbbbcccc back": "got <masked> back",
    "a eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl b": "a <masked> b",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END": "-----BEGIN RSA PRIVATE KEY-----<masked>-----END",
}


@pytest.mark.parametrize("text", BESIDE)
def test_an_unknown_value_is_masked_beside_its_name_or_by_its_form(text: str) -> None:
    assert masked(text) == BESIDE[text]


# Lines that an operator needs, although they contain a word such as token or key.
EVIDENCE = [
    "KeyError: 'experts.0.w13_weight_scale'",
    "Avg generation throughput: 1.1 tokens/s, key cache usage: 7.5%",
    "eos_token: '<|end|>' and pad_token_id=0, rank 1 of 2",
    "max_num_batched_tokens=8192, MAX_TOKENS=5 TOKENIZERS_PARALLELISM=false",
    "Namespace(api_key=None, hf_token=None, ssl_keyfile=None)",
    '{"VLLM_API_KEY": "", "HF_TOKEN": null, "token": " the"}',
    'curl -H "Authorization: Bearer $VLLM_API_KEY"',
    "ssh://user@host:22/path and http://[::1]:8000/v1",
    "DB_PASS= and the key of this is patience",
    "task-disk-by-id-0123456789abcdef0123456789",
    "NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE",
    "Unknown vLLM environment variable detected: VLLM_X",
]


@pytest.mark.parametrize("text", EVIDENCE)
def test_evidence_is_left(text: str) -> None:
    assert masked(text) == text


# secret -> (a text with it, the masked text). Short secrets must not mask everything.
SHORT = {
    "1": ("rank 1 of 2, PIN_KEY=1", "rank 1 of 2, PIN_KEY=<masked>"),
    "abc": ("abc of x, PIN_KEY=abc", "abc of x, PIN_KEY=<masked>"),
    "8000": ("port 8000, PIN_KEY=8000", "port 8000, PIN_KEY=<masked>"),
    "true": ("it is true", "it is true"),
    "EMPTY": ("an EMPTY list", "an EMPTY list"),
    "hunter2": ("hunter2, hunter22 and hunter2_x", "<masked>, hunter22 and hunter2_x"),
    "123456": ("pid 123456, 1234567", "pid <masked>, 1234567"),
    "eightchr": ("an eightchrs", "an <masked>s"),
}


@pytest.mark.parametrize("value", SHORT)
def test_short_secrets(value: str) -> None:
    text, left = SHORT[value]
    assert masked(text, ("PIN_KEY", value)) == left


def test_weak_secrets_are_named() -> None:
    secrets = Secrets()
    secrets.add([("A_KEY", "1"), ("B_KEY", "true"), ("C_KEY", "12345"), ("D_KEY", "hunter2"), ("E_KEY", "")])
    assert secrets.weak() == ["A_KEY", "B_KEY", "C_KEY"]


def test_a_value_seen_beside_its_name_is_masked_in_other_texts() -> None:
    assert masked("it was abcdef0123.", learn="OTHER_TOKEN=abcdef0123") == "it was <masked>."
    assert masked("it was abc.", learn="OTHER_TOKEN=abc") == "it was abc."


def test_the_longer_of_two_values_is_masked_whole() -> None:
    assert masked("a abcdefgh-and-more b", ("A", "abcdefgh"), ("B", "abcdefgh-and-more")) == "a <masked> b"


def test_values_with_spaces_or_quotes_around_them() -> None:
    """Docker keeps the quotes of an env file, other readers remove them."""
    assert masked("key=correct-horse.", ("A", ' "correct-horse" ')) == "key=<masked>."


def test_an_env_file_shows_only_names() -> None:
    text = "# VLLM_API_KEY=old\r\nVLLM_API_KEY=a=b\r\nEMPTY_ONE=\n\nsecond half of a secret\nHF_TOKEN= x\n"
    assert spark_secrets.env_names(text) == (
        "VLLM_API_KEY=<masked>\nEMPTY_ONE=\nHF_TOKEN=<masked>\n# 2 other lines, not shown\n"
    )
    assert spark_secrets.env_pairs(text) == [("VLLM_API_KEY", "a=b"), ("EMPTY_ONE", ""), ("HF_TOKEN", " x")]


def test_secrets_of_a_container() -> None:
    document = {
        "Config": {
            "Env": ["HF_TOKEN=one two", "MAX_TOKENS=5", "PATH=/bin"],
            "Cmd": ["--model", "m", "--api-key", "three", "--port=1", "--auth-token=four"],
            "Labels": {"registry_password": "five", "eos_token": "six"},
            "Empty": [],
        },
        "HttpHeaders": {"X_API_KEY": ["seven"]},
    }
    values = {value for _, value in spark_secrets.in_document(document)}
    assert values == {"one two", "three", "four", "five", "seven"}


def test_secrets_of_a_launch() -> None:
    script = "set -eu\nf() { x <<R\n$1\nR\n}\nexec docker run \\\n  --env 'A_TOKEN=b c' \\\n  --env B=c"
    assert spark_secrets.in_script(script) == [("A_TOKEN", "b c")]
    assert spark_secrets.in_script("echo 'never closed") == []


def test_no_secret_survives_by_chance() -> None:
    chance = random.Random(5)  # noqa: S311 cases, no secrets
    letters = "abXY01 \"'\\/%+=&<>{}$äß€"
    for _ in range(300):
        value = "".join(chance.choices(letters, k=chance.randint(8, 20))).strip("\"' ")
        value += "q" * (8 - len(value))
        around = ["".join(chance.choices(letters, k=9)) for _ in range(6)]
        forms = [value, json.dumps(value), repr(value), quote(value, safe=""), shlex.quote(value)]
        result = masked(
            "\n".join(f"{side}|{form}|" for side, form in zip(around, forms, strict=False)), ("A_KEY", value)
        )
        assert value not in result
        assert json.dumps(value)[1:-1] not in result


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["key=", "key='", "--api-key ", "a://b:", "password: ", "-", " ", '\\"', "eyJ", "&key"]
)
def test_a_hostile_line_takes_no_time_that_grows_with_its_square(part: str) -> None:
    """A line of 64 KiB, the limit of a reader. A pattern with quadratic cost would take minutes."""
    assert masked(part * (65536 // len(part)))
