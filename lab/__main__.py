"""Write the generated files that are out of date (`make docs`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.pages import generated


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files that are out of date and name them. With --check write nothing, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    args = parser.parse_args(argv)
    outdated = generated.outdated()
    for name, text in outdated.items():
        if args.check:
            print(f"{name} is out of date — expected: what `make docs` writes. Fix: make docs", file=sys.stderr)
        else:
            generated.write(name, text)
            print(name)
    return 1 if args.check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
