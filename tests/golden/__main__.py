"""`make golden`: record the snapshots of this version, and the plans of the pipelines in the docs.

`python -m golden explain` records the plans only. From the first release on, the snapshots of a
recorded version are never written again: later versions must read them.
"""

import sys

from golden import explain
from golden.record import FOLDER, write
from tidegate import __version__

if __name__ == "__main__":
    if "explain" not in sys.argv:
        write(__version__)
        print(f"recorded {FOLDER / __version__}")
    explain.write()
    print(f"recorded {explain.FOLDER}")
