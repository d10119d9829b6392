"""What `vllm-spark init` proposes for Sparks, and which Sparks it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from vllm_spark.cli.init import discovery, proposal, sparks
from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import link_config
from vllm_spark.node import mdns
from vllm_spark.node.mdns import Answer
from vllm_spark.recipe import loader
from vllm_spark.sizing import reference_spark

SILENT = Conversation(silent=True)
PAIR = "gemma-4-31b-nvfp4-tp2-dflash"
# It has no forecast, and the highest reported figure.
REPORTED = "qwen3.8-flash-next-nvfp4-tp2"
LAN = Answer("gx10-3c4d.local", "wlan0", "10.0.0.4")
CABLE = Answer("gx10-3c4d.local", "enp1s0f1np1", "fe80::4%enp1s0f1np1")
OTHER = Answer("spark-5e6f.local", "eth0", "10.0.0.5")


def spark_facts(facts: dict[str, Any], count: int, *, cabled: bool = True) -> dict[str, Any]:
    fabric = {name: reference_spark.fabric(name) for name in reference_spark.HOSTS}
    none = {**fabric["spark1"], "hcas": []}
    return {
        f"spark{number}": {**facts, "fabric": fabric[f"spark{min(number, 2)}"] if cabled else none}
        for number in range(1, count + 1)
    }


def proposed(facts: dict[str, Any], wish: str | None) -> list[dict[str, Any]]:
    recipe = [loader.load(wish).document] if wish and wish in loader.names([paths.RECIPES]) else wish
    return proposal.deployments(recipe, facts, [paths.RECIPES], SILENT)


def of_names(facts: dict[str, Any], *names: str) -> list[tuple[str, str, list[str]]]:
    """Return the deployments of several recipes."""
    recipes = [loader.load(name).document for name in names]
    return [tuple(one.values()) for one in proposal.deployments(recipes, facts, [paths.RECIPES], SILENT)]


@pytest.mark.parametrize(
    ("count", "cabled", "wish", "expected"),
    [
        (1, False, None, [("qwen", "qwen3.6-35b-a3b-nvfp4-mtp", ["spark1"])]),
        (1, False, "many", [("qwen", "qwen3.6-35b-a3b-nvfp4-mtp", ["spark1"])]),
        (2, True, "chat", [("qwen", REPORTED, ["spark1", "spark2"])]),
        (2, True, "pictures", [("gemma", PAIR, ["spark1", "spark2"])]),
        (
            2,
            False,
            "chat",
            [("qwen-1", "qwen3.6-35b-a3b-nvfp4-mtp", ["spark1"]), ("qwen-2", "qwen3.6-35b-a3b-nvfp4-mtp", ["spark2"])],
        ),
        (3, True, PAIR, [("gemma", PAIR, ["spark1", "spark2"])]),
        (1, False, "gpt-oss-120b", [("gpt", "gpt-oss-120b", ["spark1"])]),
    ],
)
def test_a_recipe_for_the_sparks(
    facts: dict[str, Any], count: int, cabled: bool, wish: str | None, expected: list[tuple[str, str, list[str]]]
) -> None:
    entries = proposed(spark_facts(facts, count, cabled=cabled), wish)
    assert [tuple(entry.values()) for entry in entries] == expected


def test_several_recipes_share_each_spark(facts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    known = spark_facts(facts, 2, cabled=False)
    assert of_names(known, "gpt-oss-20b", "bge-m3") == [
        ("gpt-1", "gpt-oss-20b", ["spark1"]),
        ("gpt-2", "gpt-oss-20b", ["spark2"]),
        ("bge-1", "bge-m3", ["spark1"]),
        ("bge-2", "bge-m3", ["spark2"]),
    ]
    shown = capsys.readouterr().out
    for host in known:
        assert f"memory of {host}: gpt-{host[-1]} " in shown
        assert f"memory of {host}: bge-{host[-1]} " in shown
    assert shown.count(" left\n") == len(known)
    # A word that two of them have names neither.
    names = [name for name, *_ in of_names(spark_facts(facts, 1), "qwen3-embedding-0.6b", "qwen3-reranker-0.6b")]
    assert names == ["qwen3-embedding-0-6b", "qwen3-reranker-0-6b"]


def test_several_recipes_that_do_not_fit_are_refused_with_who_has_what(facts: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        of_names(spark_facts(facts, 1), "gpt-oss-120b", "qwen3.6-35b-a3b-nvfp4-mtp", "nemotron-3.5-lightning-nvfp4")
    (message,) = map(str, refused.value.refusals)
    assert "gpt and nemotron and qwen are active on spark1 and need " in message
    assert "; qwen " in message
    assert "Fix: leave out one --recipe, or name a smaller one: `vllm-spark recipes` lists them." in message
    assert "active: false" not in message


def test_a_pair_and_a_small_server_share_two_sparks(facts: dict[str, Any]) -> None:
    assert of_names(spark_facts(facts, 2), PAIR, "qwen3-embedding-0.6b") == [
        ("gemma", PAIR, ["spark1", "spark2"]),
        ("qwen-1", "qwen3-embedding-0.6b", ["spark1"]),
        ("qwen-2", "qwen3-embedding-0.6b", ["spark2"]),
    ]


def test_a_cable_without_an_address_gets_its_variable(facts: dict[str, Any]) -> None:
    known = spark_facts(facts, 2)
    pair = [{"name": "gemma", "recipe": PAIR, "hosts": ["spark1", "spark2"]}]
    # The reference Sparks have addresses.
    assert proposal.fabric(pair, known) == {}
    for host in known.values():
        for netdev in host["fabric"]["netdevs"]:
            netdev["addresses"] = []
    lan = {"name": "eth0", "addresses": [{"address": "192.168.178.7", "prefix": 24}], "mtu": 1500, "carrier": True}
    known["spark2"]["fabric"]["netdevs"].append({**lan, "wireless": False})
    written = {host: variables["vllm_fabric"] for host, variables in proposal.fabric(pair, known).items()}
    assert written == {
        "spark1": {
            "peer": "spark2",
            "addresses": {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.179.11/24"},
        },
        "spark2": {
            "peer": "spark1",
            "addresses": {"enp1s0f1np1": "192.168.177.12/24", "enP2p1s0f1np1": "192.168.179.12/24"},
        },
    }
    # The rule that fabric.yml judges it by.
    ends = [link_config.parse(host, value, list(known)) for host, value in written.items()]
    assert [refusals for _, refusals in ends] == [[], []]
    assert list(link_config.mismatches(*(end for end, _ in ends if end))) == []
    assert proposal.fabric([{**pair[0], "hosts": ["spark1"]}], known) == {}


def test_the_words_of_the_uses_differ() -> None:
    assert len({use.word for use in proposal.uses.USES}) == len(proposal.uses.USES)


def test_what_does_not_fit_is_not_proposed(facts: dict[str, Any]) -> None:
    small = reference_spark.memory(64)
    known = spark_facts({**facts, "memory": small}, 1)
    assert proposed(known, "many")[0]["recipe"] != "qwen3.6-35b-a3b-nvfp4-mtp"
    with pytest.raises(RefusedError, match=r"spark1 has 51\.2 GiB .* qwen3.6-35b-a3b-nvfp4-mtp needs"):
        proposed(known, "qwen3.6-35b-a3b-nvfp4-mtp")
    full = {**facts, "memory": {**small, "available": 1 << 30}}
    with pytest.raises(RefusedError, match=r"no recipe for chat fits spark1 .* Fix: vllm-spark recipes\."):
        proposed(spark_facts(full, 1), None)


def test_a_recipe_for_two_needs_two() -> None:
    with pytest.raises(
        RefusedError, match=f"is for 2 Sparks, and init has 1: spark1 .* init --recipe {PAIR} HOST HOST"
    ):
        proposal.groups(loader.load(PAIR).document, ["spark1"])


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that sets what answers mDNS, and whether this machine is a Spark."""

    def answering(answers: Sequence[Answer], *, here: bool) -> None:
        monkeypatch.setattr(mdns, "ask", lambda: answers)
        monkeypatch.setattr(mdns, "cables", lambda: {"enp1s0f1np1"})
        monkeypatch.setattr(sparks, "this_is_a_spark", lambda: here)
        monkeypatch.setattr("socket.gethostname", lambda: "spark-1a2b.lan")
        monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
        forget()

    def forget() -> None:
        discovery.answers.cache_clear()
        discovery.reachable.cache_clear()

    yield answering
    forget()


@pytest.mark.parametrize("talk", [SILENT, Conversation(silent=False)], ids=["silent", "asking"])
def test_a_spark_takes_itself_without_a_question(network: Any, talk: Conversation) -> None:
    network([LAN, CABLE, Answer("spark-1a2b.local", "eth0", "10.0.0.1")], here=True)
    assert discovery.choose(talk) == ["localhost"]
    assert discovery.own_address() == "spark-1a2b.local"


def test_with_others_the_owner_chooses(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(question: str) -> str:
        asked.append(question)
        return "localhost, spark-5e6f.local"

    monkeypatch.setattr("builtins.input", answer)
    network([LAN, CABLE, OTHER], here=True)
    assert discovery.choose(Conversation(silent=False)) == ["localhost", "spark-5e6f.local"]
    assert asked == ["Sparks to use, each by name or address [localhost]: "]
    network([], here=False)
    assert discovery.choose(Conversation(silent=False)) == ["localhost", "spark-5e6f.local"]
    assert asked[1] == "Sparks to use, each by name or address: "


def test_a_laptop_takes_the_one_that_answers(network: Any) -> None:
    network([LAN, CABLE], here=False)
    assert discovery.choose(SILENT) == ["gx10-3c4d.local"]


def test_without_a_resolver_the_address_is_taken(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network([LAN], here=False)

    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert discovery.choose(SILENT) == ["10.0.0.4"]


def test_of_several_yes_chooses_none(network: Any) -> None:
    network([LAN, OTHER], here=False)
    with pytest.raises(
        RefusedError, match=r"gx10-3c4d\.local, spark-5e6f\.local answer mDNS .* `vllm-spark init USER@HOST --yes`"
    ):
        discovery.choose(SILENT)


def test_none_is_refused_with_what_was_tried(network: Any) -> None:
    network([], here=False)
    with pytest.raises(RefusedError, match=r"no Spark was found: nvidia-smi .* mDNS .* `vllm-spark init USER@HOST"):
        discovery.choose(SILENT)


def test_the_peer_on_the_cable_is_offered(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network([LAN, CABLE, OTHER], here=True)
    here = sparks.Spark.here("spark-1a2b.local")
    facts: Any = {"hostname": "spark-1a2b"}
    monkeypatch.setattr("builtins.input", lambda _: "")
    assert discovery.peers(Conversation(silent=False), here, facts) == ["gx10-3c4d.local"]
    assert discovery.peers(SILENT, here, facts) == []
    monkeypatch.setattr("builtins.input", lambda _: "no")
    assert discovery.peers(Conversation(silent=False), here, facts) == []
