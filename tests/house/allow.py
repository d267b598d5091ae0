"""Write `allowed.json` from the package as it is: `PYTHONPATH=src:tests python -m house.allow`.

The lists hold what is still to be mended. They may only shrink: a test fails for every entry that
is not needed any more, and a reviewer sees every entry that is new.
"""

from __future__ import annotations

import json
from pathlib import Path

from house.count import (
    crowded_functions,
    homonyms,
    import_cycles,
    imports,
    this_package,
    undocumented,
)
from house.test_documentation import OBJECTS, undescribed
from house.test_imports import crossing_imports

if __name__ == "__main__":
    here = Path(__file__).parent
    package = this_package()
    allowed = {
        "homonyms": sorted(homonyms(package)),
        "import cycles": import_cycles(imports(package)),
        "operators that import each other": crossing_imports(package),
        "over eight parameters": sorted(crowded_functions(package)),
        "undescribed settings": sorted(
            f"{name}.{setting}" for name in OBJECTS for setting in undescribed(OBJECTS[name])
        ),
        "without a docstring": sorted(undocumented(package)),
    }
    (here / "allowed.json").write_text(json.dumps(allowed, indent=1) + "\n")
    print({name: len(entries) for name, entries in allowed.items()})
