"""Fetch the vendored libraries again: a download that differs from lock.json is refused."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


def fetch() -> None:
    for name, lock in json.loads((HERE / "lock.json").read_text()).items():
        with urllib.request.urlopen(lock["tarball"], timeout=60) as answer:
            packed = answer.read()
        found = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
        if found != lock["integrity"]:
            raise SystemExit(f"{name}: the download is {found}, not {lock['integrity']}")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for file, facts in lock["files"].items():
                member = archive.extractfile(facts["from"])
                if member is None:
                    raise SystemExit(f"{name}: the package holds no {facts['from']}")
                (HERE / name / file).write_bytes(member.read())
        print(f"{name} {lock['version']}: {len(lock['files'])} files as locked")


if __name__ == "__main__":
    fetch()
