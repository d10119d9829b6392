"""What is read of a shell script: bash itself is the witness for all that needs no run."""

from __future__ import annotations

import subprocess

import pytest

from vllm_spark.authoring.shell import UNKNOWN, Shell

# Scripts whose last line prints words. Bash prints what it makes of them.
SCRIPTS = [
    r"""A=1; B="${A:-2}$A"; show "$B" ${C:-x y} "${C:-x y}" ''""",
    r"""ARGS=(a "b c" # a comment
    --json '{"k": 1}'); ARGS+=("d"); show "${ARGS[@]}" x""",
    'A=\'q\'\nshow "{\\"m\\":\\"$A\\"}" \'{"n":\'"$A"\'}\' \\\n  next\\\n  last',
    r"""if [ -n "" ]; then M=1; elif [ a = a ]; then M=2; else M=3; fi; show $M""",
    r"""S=beta; case "$S" in alpha|"") M=1 ;; b*) M=2; N=3 ;; *) M=4 ;; esac; show $M $N""",
    r"""E=""; [ -n "$E" ] && X=1; [ -z "$E" ] && Y=2; show "${X:-none}" $Y""",
    "show a 2>/dev/null >&1 b",
    "cat <<'X' >/dev/null\nshow no\nX\nshow yes",
    r"""A=v; export B="$A/w"; show ${A:+"-e X=$A"} ${D:+no} "$B" \$A""",
    r"""N=5; if [ "$N" -gt 0 ]; then show many; fi""",
    "A=1 B=2 show x",
    r"""show 'it''s' "a'b" a\ b""",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_means_what_bash_says(script: str) -> None:
    bash = "show() { printf '%s\\0' \"$@\"; }\n"
    printed = subprocess.run(["bash", "-c", f"{bash}{script}"], capture_output=True, text=True, check=True).stdout
    shown = [words[1:] for words, _ in Shell(script).commands() if words[0] == "show"]
    assert shown == [printed.removesuffix("\0").split("\0")]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('show "$1" $HOME', [f"{UNKNOWN}1", f"{UNKNOWN}HOME"]),
        ('A=$(date); show "$A/x" `id`', [f"{UNKNOWN}…/x", f"{UNKNOWN}…"]),
        ('if [ -f x ]; then A=1; fi; show "$A"', [f"{UNKNOWN}A (on a condition of the script: 1)"]),
        ('A=(a); [ -d "$D" ] && A+=(b); show "${A[@]}"', ["a", f"{UNKNOWN}A (on a condition of the script: b)"]),
        ('case "$1" in a) A=1 ;; b) A=2 ;; esac; show "$A"', [f"{UNKNOWN}A (on a condition of the script: 1 or 2)"]),
    ],
)
def test_what_only_a_run_tells_stays_unknown(script: str, words: list[str]) -> None:
    assert [found[1:] for found, _ in Shell(script).commands() if found[0] == "show"] == [words]


def test_a_quote_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no closing quotation"):
        list(Shell("show 'x").commands())
