"""The rule of secrets' names, judged by names that other programs read and by every flag and variable of the engine."""

from __future__ import annotations

import pytest
import yaml

from project_files import DATA
from vllm_spark.node.secret_names import has_form, is_secret
from vllm_spark.recipe import engine_flags

NAMES = {kind: names.split() for kind, names in yaml.safe_load((DATA / "secret-names.yml").read_text()).items()}


def test_names_of_public_packages() -> None:
    assert min(len(NAMES["secret"]), len(NAMES["plain"])) > 100
    judged = {name: is_secret(name) for names in NAMES.values() for name in names}
    assert sorted(name for name in NAMES["secret"] + NAMES["alarms"] if not judged[name]) == []
    assert sorted(name for name in NAMES["plain"] + NAMES["missed"] if judged[name]) == []


def test_of_the_engine_only_secrets_are_secrets() -> None:
    engines = [engine_flags.load(version) for version in engine_flags.versions()]
    assert {flag for engine in engines for flag in engine.flags if is_secret(flag)} == {"api-key", "hf-token"}
    variables = {name for engine in engines for name in engine.variables}
    assert {name for name in variables if is_secret(name)} == {"VLLM_API_KEY", "S3_SECRET_ACCESS_KEY"}
    keys = {key for engine in engines for flag in engine.flags.values() for key in flag.keys}
    assert keys
    assert {key for key in keys if is_secret(key, field=True)} == set()


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "S3_SECRET_ACCESS_KEY",
        "OPENAI_KEY",
        "wandb_api_key",
        "NGC_APIKEY",
        "DB_PASS",
        "GH_TOKEN_FILE",
        "MY_CREDENTIALS",
        "secretAccessKey",
        "--auth-token",
        "HF_TOKEN2",
    ],
)
def test_names_that_passed_once(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "--max-num-batched-tokens",
        "max_tokens",
        "TOKENIZERS_PARALLELISM",
        "KEY_FRAMES",
        "PWD",
        "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE",
        "PAD_TOKEN",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN",
        "BYPASS",
    ],
)
def test_names_that_only_look_like_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("name", ["kv_key", "eos_token", "key", "token", "auth", "forward_pass", "layer_key"])
def test_a_field_of_a_program_needs_a_telling_word(name: str) -> None:
    assert not is_secret(name, field=True)
    assert is_secret(f"{name}_secret", field=True)


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://me:hidden@proxy:3128", True),
        ("http://proxy:3128", False),
        ("https://host/x?api_key=hidden", True),
        ("Authorization=Bearer abcdefgh", True),
        ("glpat-abcdefghij0123456789", True),
        ("xoxb-123456789012-abc", True),
        ("max_split_size_mb:64,expandable_segments:True", False),
        ("task-disk-by-id-0123456789abcdef0123", False),
    ],
)
def test_a_value_in_the_form_of_a_secret(value: str, secret: bool) -> None:
    assert has_form(value) == secret
