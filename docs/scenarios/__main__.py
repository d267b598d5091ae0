"""Draw the scenarios: `python docs/scenarios --to FOLDER [--family NAME]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `scenarios` is found from anywhere

from scenarios import FAMILIES, refresh_rules, write_scenarios


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every scenario and draw what came out.")
    parser.add_argument("--to", type=Path, default=Path("scenarios"), help="folder to write to")
    parser.add_argument("--family", choices=list(FAMILIES), help="only this family")
    parser.add_argument("--rules", type=Path, help="folder of pages to write the rules into")
    asked = parser.parse_args()
    page, *pictures = write_scenarios(asked.to, asked.family)
    print(f"{page} and {len(pictures)} pictures beside it")
    if asked.rules is not None:
        for slug in refresh_rules(asked.rules):
            print(f"no page of {asked.rules} shows {slug}")


if __name__ == "__main__":
    main()
