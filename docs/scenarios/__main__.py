"""Draw the scenarios: `python docs/scenarios --to FOLDER [--family NAME]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `scenarios` is found from anywhere

from scenarios import FAMILIES, write_scenarios


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every scenario and draw what came out.")
    parser.add_argument("--to", type=Path, default=Path("scenarios"), help="folder to write to")
    parser.add_argument("--family", choices=list(FAMILIES), help="only this family")
    asked = parser.parse_args()
    page, *pictures = write_scenarios(asked.to, asked.family)
    print(f"{page} and {len(pictures)} pictures beside it")


if __name__ == "__main__":
    main()
