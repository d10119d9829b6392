"""The rule of secrets' names, judged by names that other programs read and by every flag and variable of the engine."""

from __future__ import annotations

import pytest
import yaml

from project_files import DATA
from vllm_spark.node.secret_names import has_form, is_secret
from vllm_spark.recipe import engine_flags

# Of tokens whose form has no entry of its own.
PREFIXES = ("ya29.", "npm_", "pypi-", "tskey-auth-", "r8_", "gsk_", "key-", "sess_live_")
FILES = ("secret-names.yml", "secret-names-of-compose.yml")
READ = [yaml.load((DATA / file).read_text(), yaml.CSafeLoader) for file in FILES]
GROUPS = {"packages": READ[0], **READ[1]}


@pytest.mark.parametrize("group", GROUPS)
def test_names_of_public_packages_and_files(group: str) -> None:
    names = {kind: text.split() for kind, text in GROUPS[group].items()}
    assert len(names["secret"]) > 50
    assert len(names["plain"]) > 100
    judged = {name: is_secret(name) for kind in names.values() for name in kind}
    assert sorted(name for name in names["secret"] + names["alarms"] if not judged[name]) == []
    assert sorted(name for name in names["plain"] + names["missed"] if judged[name]) == []


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("LDAP_AUTH", "true", False),
        ("SMTP_AUTH", "user:hidden", True),
        ("USE_TOKEN", "true", False),
        ("USE_TOKEN", "abc-hidden", True),
        ("LOGIN_WITH_TOKEN", "abc-hidden", True),
        ("PASSWORD_LENGTH", "12", False),
        ("PIN_KEY", "1", True),
        ("REDIS_URL", "redis://redis:6379/0", False),
        ("REDIS_URL", "redis://me:hidden@redis:6379/0", True),
        ("DATABASE_URL", None, True),
    ],
)
def test_the_value_decides_where_the_name_does_not(name: str, value: str | None, secret: bool) -> None:
    assert is_secret(name, value) == secret


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
        "SLACK_WEBHOOK",
        "JWT_SIGNING",
        "LANGFUSE_SK",
        "DATABASE_URL",
        "KUBE_CONFIG_DATA",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "HTTP_HEADERS",
        "COOKIE",
        "SESSION_COOKIE",
        "OTP_SEED",
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
        *((f"{prefix}{'aB3xY9kQ2mN7pR4tV8wZ1cD5fG6hJ0lS'}", True) for prefix in PREFIXES),
        (f"AIza{'aB3xY9kQ2mN7pR4tV8wZ1cD5fG6hJ0lS'}abc", True),
        (f"ASIA{'ABCDEFGH23456789'}", True),
        (f"dop_v1_{'0123abcd' * 8}", True),
        (f"SG.{'aB3xY9kQ2mN7pR4tV8wZ1c'}.{'aB3xY9kQ2mN7pR4tV8wZ1c'}", True),
        ("curl -u me:hidden https://host", True),
        ("Cookie: session=hidden", True),
        ("the password is hidden", True),
        ("machine host login me password hidden", True),
        ("gemma-4-26b-a4b-it-fp8-dynamic", False),
        ("Gemma4ForConditionalGeneration", False),
        ("_ZN3c104cuda20CUDACachingAllocator6mallocEPPviS2_", False),
        ("chatcmpl-b6c0f8f6c5a84b5e9d1f2a3b4c5d6e7f", False),
        ("triton_red_fused_add_mul_0d1d2d3d4d5c6d7d8d", False),
        ("max_split_size_mb:64,expandable_segments:True", False),
        ("task-disk-by-id-0123456789abcdef0123", False),
    ],
)
def test_a_value_in_the_form_of_a_secret(value: str, secret: bool) -> None:
    assert has_form(value) == secret
