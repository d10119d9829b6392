"""What a challenge says, and which token service of a registry gets this machine's login."""

from __future__ import annotations

import pytest

from vllm_spark.node.pull import token_service

NVCR = "https://nvcr.io"


@pytest.mark.parametrize(
    ("realm", "registry"),
    [
        ("https://auth.docker.io/token", "https://registry-1.docker.io"),
        ("https://nvcr.io/proxy_auth", NVCR),
        ("https://authn.nvidia.com/token", NVCR),
        ("https://ghcr.io/token", "https://ghcr.io"),
        ("https://quay.io/v2/auth", "https://quay.io"),
        ("https://gitlab.com/jwt/auth", "https://registry.gitlab.com"),
        ("https://gcr.io/v2/token", "https://gcr.io"),
        ("https://us-docker.pkg.dev/v2/token", "https://us-docker.pkg.dev"),
        ("https://mcr.microsoft.com/oauth2/token", "https://mcr.microsoft.com"),
        ("https://public.ecr.aws/token/", "https://public.ecr.aws"),
        ("https://mine.azurecr.io/oauth2/token", "https://mine.azurecr.io"),
        ("https://docker-auth.elastic.co/auth", "https://docker.elastic.co"),
        ("https://api.digitalocean.com/v2/registry/auth", "https://registry.digitalocean.com"),
        ("https://GHCR.io:443/token", "https://ghcr.io"),
        ("https://auth.registry.example.com/token", "https://registry.example.com"),
        ("http://127.0.0.1:5001/token", "http://127.0.0.1:5000"),
        ("http://spark1:5001/token", "http://spark1:5000"),
    ],
)
def test_a_service_of_the_registry_gets_the_login(realm: str, registry: str) -> None:
    assert token_service.objection(realm, registry, login=True) == ""


@pytest.mark.parametrize(
    ("realm", "registry", "why"),
    [
        ("file:///root/token.json#", NVCR, "does not use https"),
        ("ftp://nvcr.io/token", NVCR, "does not use https"),
        ("http://nvcr.io/token", NVCR, "does not use https"),
        ("http://other:5000/token", "http://spark1:5000", "does not use https"),
        ("https://[::1/token", NVCR, "is not a URL"),
        ("https:///token", NVCR, "is not of the site of nvcr.io"),
        ("https://evil.io/token", NVCR, "is not of the site of nvcr.io"),
        ("https://nvcr.io.evil.com/token", NVCR, "is not of the site of nvcr.io"),
        ("https://evilnvcr.io/token", NVCR, "is not of the site of nvcr.io"),
        ("https://nvcr.io@evil.com/token", NVCR, "is not of the site of nvcr.io"),
        ("https://theirs.azurecr.io/oauth2/token", "https://mine.azurecr.io", "is not of the site of mine.azurecr.io"),
        ("https://theirs.github.io/token", "https://mine.github.io", "is not of the site of mine.github.io"),
        ("https://d2.cloudfront.net/token", "https://d1.cloudfront.net", "is not of the site of d1.cloudfront.net"),
        (
            "https://2.dkr.ecr.us-east-1.amazonaws.com/token",
            "https://1.dkr.ecr.us-east-1.amazonaws.com",
            "is not of the site of 1.dkr.ecr.us-east-1.amazonaws.com",
        ),
        ("https://azurecr.io/token", "https://mine.azurecr.io", "is not of the site of mine.azurecr.io"),
        (
            "https://gitlab.example.com/jwt/auth",
            "https://registry.example.com",
            "is not of the site of registry.example",
        ),
        ("https://registry.gitlab.com/token", "https://gitlab.com.evil.io", "is not of the site of gitlab.com.evil.io"),
        ("https://evil.co.uk/token", "https://registry.co.uk", "is not of the site of registry.co.uk"),
        ("https://10.0.0.2/token", "https://10.0.0.1", "is not of the site of 10.0.0.1"),
    ],
)
def test_another_service_does_not(realm: str, registry: str, why: str) -> None:
    assert token_service.objection(realm, registry, login=True).startswith(why)


def test_a_token_without_a_login_may_come_from_anywhere_over_https() -> None:
    assert token_service.objection("https://tokens.example.net/t", NVCR, login=False) == ""
    assert token_service.objection("file:///etc/hostname", NVCR, login=False) == "does not use https"


# WWW-Authenticate headers, joined by commas -> parameters of each scheme
CHALLENGES = {
    "": {},
    "Bearer": {"bearer": {}},
    "Negotiate, Basic realm=home": {"negotiate": {}, "basic": {"realm": "home"}},
    'Basic realm="a, b", Bearer realm="https://r/t",service=hub': {
        "basic": {"realm": "a, b"},
        "bearer": {"realm": "https://r/t", "service": "hub"},
    },
    'BEARER Realm = "https://r/t" , scope="", service=,error=none': {
        "bearer": {"realm": "https://r/t", "scope": "", "service": "", "error": "none"}
    },
    'Bearer realm="https://first/t", Bearer realm="https://second/t"': {"bearer": {"realm": "https://first/t"}},
    'realm="of no scheme"': {},
}


@pytest.mark.parametrize("challenges", CHALLENGES)
def test_each_challenge_keeps_its_own_parameters(challenges: str) -> None:
    assert token_service.parameters_by_scheme(challenges) == CHALLENGES[challenges]
