"""`python -m tidegate.spool FOLDER`: land MQTT messages in a spool until interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tidegate.errors import TidegateError
from tidegate.spool.log import Spool
from tidegate.spool.mqtt import Landing


def land_from_mqtt() -> int:
    """Parse the command line and land messages until SIGTERM or SIGINT.

    The password comes from the environment, because arguments show up in process lists.

    Returns:
        The exit code: 0 after a signal; 2 if the spool or the broker cannot be used (the reason is
        printed to stderr).
    """
    parser = argparse.ArgumentParser(prog="python -m tidegate.spool", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--topic", action="append", help="may be given several times; all if unset")
    parser.add_argument("--client-id", default="tidegate-spool")
    parser.add_argument("--username", help="the password is taken from TIDEGATE_MQTT_PASSWORD")
    given = parser.parse_args()
    try:
        with Spool(given.folder) as spool:
            landing = Landing(
                spool, given.host, given.port, tuple(given.topic or ("#",)), given.client_id,
                given.username, os.environ.get("TIDEGATE_MQTT_PASSWORD"),
            )  # fmt: skip
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: landing.stop())
            landing.run()
    except (TidegateError, OSError) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(land_from_mqtt())
