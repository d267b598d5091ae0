"""`make golden`: record the snapshots of this version.

From the first release on a recorded version is never written again: later versions must read it.
"""

from golden.record import FOLDER, write
from tidegate import __version__

if __name__ == "__main__":
    write(__version__)
    print(f"recorded {FOLDER / __version__}")
