"""Errors of the forecast on public rows: `python -m lab.forecast.rows_of_file FILE [--rows] [--write FOLDER]`.

Prints for each family the mean error, the share inside 15 %, and those of the time to the first token, once for the
rows that the constants are fitted to (measured) and once for the rows of the file that are not among
them. Two Sparks have a table of their own by number of streams.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.forecast import measured_rows
from lab.forecast.measured_rows import COLUMNS, Configuration, Errors
from lab.forecast.public_rows import read

NEAR, FIRST_TOKEN_NEAR, PAIR_NEAR = 0.15, 0.25, 0.20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--write", type=Path, help="write the configurations of the file as data of the project")
    args = parser.parse_args()
    found, dropped = read(args.file)
    if args.write:
        write(found, dropped, args.write)
        return
    fitted = measured_rows.configurations()
    known = {(configuration.id, row) for configuration in fitted for row in configuration.rows}
    print(f"{sum(len(c.rows) for c in found)} rows of {args.file.name} in {len({c.key for c in found})} configurations")
    for reason, ids in dropped.items():
        print(f"  dropped {len(ids)}: {reason}")
    print_table("fitted", measured_rows.errors(fitted))
    new = [
        Configuration(**{**fields(c), "rows": tuple(row for row in c.rows if (c.id, row) not in known)}) for c in found
    ]
    print_table(f"held back, {args.file.name}", measured_rows.errors(new))
    print_pairs(new)
    if args.rows:
        print_rows(new)


def fields(configuration: Configuration) -> dict[str, Any]:
    return {name: getattr(configuration, name) for name in configuration.__dataclass_fields__}


def print_table(title: str, errors: dict[str, Errors]) -> None:
    """Print a line for each family, and one for all."""
    print(
        f"\n{title}\n{'family':<28}{'rows':>6}{'mean':>8}{'in 15 %':>9}{'largest':>9} | first token {'rows':>5}"
        f"{'mean':>8}{'in 25 %':>9}"
    )
    together = Errors()
    for name, found in sorted(errors.items()):
        print_line(name, found)
        together.speed += found.speed
        together.first_token += found.first_token
    print_line("all", together)


def print_line(name: str, found: Errors) -> None:
    speed, first = [abs(e) for e in found.speed], [abs(e) for e in found.first_token]
    line = f"{name:<28}{len(speed):>6}"
    line += f"{_mean(speed):>8.1%}{_inside(speed, NEAR):>9.0%}{max(speed):>9.0%}" if speed else " " * 26
    line += f" |             {len(first):>5}"
    print(line + (f"{_mean(first):>8.1%}{_inside(first, FIRST_TOKEN_NEAR):>9.0%}" if first else ""))


def print_pairs(configurations: Sequence[Configuration]) -> None:
    """Print the errors of two Sparks by number of streams."""
    by_streams: dict[int, Errors] = {}
    for configuration in configurations:
        for row in configuration.rows if configuration.tensor_parallel > 1 else ():
            by_streams.setdefault(row.streams, Errors()).add(configuration, row, configuration.served(row))
    print("\ntwo Sparks, by streams (inside 20 %)")
    for streams, found in sorted(by_streams.items()):
        speed = [abs(error) for error in found.speed]
        if speed:
            print(
                f"  {streams:>3} streams {len(speed):>4} rows, mean {_mean(speed):.1%}, {_inside(speed, PAIR_NEAR):.0%}"
            )


def print_rows(configurations: Sequence[Configuration]) -> None:
    for configuration in configurations:
        for row in configuration.rows:
            served = configuration.served(row)
            measured = row.decode or row.total
            speed = served.decode if row.decode else served.total
            error = f"{speed / measured - 1:+.0%}" if measured else "-"
            first = f"{served.first_token_s * 1e3 / row.first_token_ms - 1:+.0%}" if row.first_token_ms else "-"
            print(
                f"{configuration.id[:70]:<70} {row.prompt:>6}/{row.output} x{row.streams:<3} "
                f"{speed:8.1f} {measured or 0:8.1f} {error:>6} {first:>6}"
            )


def write(configurations: Sequence[Configuration], dropped: dict[str, list[str]], folder: Path) -> None:
    """Write a file for each family."""
    by_family: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        by_family.setdefault(configuration.family, []).append(configuration)
    for family, members in by_family.items():
        lines = [
            f"# Public rows of {family}. Each row: {', '.join(COLUMNS)}; ms and tok/s, null where not measured.",
            "# yamllint disable rule:line-length",
            "---",
            "configurations:",
        ]
        for member in members:
            lines += _entry(member)
        (folder / f"{family}.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    entries = [f"- reason: {json.dumps(reason)}\n  ids: {json.dumps(ids)}" for reason, ids in dropped.items()]
    (folder / "dropped.yaml").write_text(
        "# yamllint disable rule:line-length\n---\n" + "\n".join(entries) + "\n", encoding="utf-8"
    )


def _entry(configuration: Configuration) -> list[str]:
    defaults = Configuration.__dataclass_fields__
    values = {name: value for name, value in fields(configuration).items() if name != "rows"}
    shown = {name: value for name, value in values.items() if value != defaults[name].default}
    text = [f"  {'- ' if n == 0 else '  '}{name}: {json.dumps(value)}" for n, (name, value) in enumerate(shown.items())]
    rows = [json.dumps([getattr(row, column) for column in COLUMNS]) for row in configuration.rows]
    return [*text, "    rows:", *(f"      - {row}" for row in rows)]


def _mean(errors: Sequence[float]) -> float:
    return sum(errors) / len(errors)


def _inside(errors: Sequence[float], limit: float) -> float:
    return sum(error <= limit for error in errors) / len(errors)


if __name__ == "__main__":
    main()
