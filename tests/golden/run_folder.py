"""The files of a run: records, a fold, claims, Parquet files and a savepoint, as one zip file.

The run is the undisturbed one of `faults.simulation`: the real sink, records, epochs and
maintenance, on a disk in memory.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from faults import simulation
from faults.simulated_disk import Disk
from golden import in_process
from golden.cases import HALF, WHOLE
from tidegate.output.savepoint import Savepoint, load_savepoint

ARCHIVE = "run.zip"
EXPECTED = "run.json"


def write(folder: Path) -> None:
    """Record a run and a savepoint under a version."""
    world = simulation.World(Disk())
    driver = simulation.Driver(world)
    driver.run()
    assert driver.said is None, driver.said
    flow = in_process.make_flow()
    in_process.flow_all(flow, 0, HALF)
    after = in_process.flow_all(flow, HALF, WHOLE)
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, inode in sorted(world.disk.names.items()):
            archive.writestr(name.lstrip("/"), inode.content)
        with tempfile.TemporaryDirectory() as place:
            half = in_process.make_flow()
            in_process.flow_all(half, 0, HALF)
            stages = tuple(half.chain.identities())
            Savepoint(1, ("key",), stages, {0: half.pages()}).write(f"{place}/savepoint")
            for file in sorted(Path(place, "savepoint").iterdir()):
                archive.write(file, f"savepoint/{file.name}")
    expected = {"rows": simulation.result_of(world), "after_savepoint": after}
    (folder / EXPECTED).write_text(json.dumps(expected, separators=(",", ":")) + "\n")


def after_savepoint(path: Path) -> Any:
    """What comes after the savepoint."""
    flow, left = load_savepoint(str(path), in_process.make_flow)
    assert not left
    return in_process.flow_all(flow, HALF, WHOLE)
