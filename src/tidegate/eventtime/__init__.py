"""Event time: which column carries it, how it is read, and the watermark that orders rows by it.

`types` reads columns, `decoder` gives every row its time, `stage` orders rows and emits watermarks
by the `rules`, and `process_time` is the watermark for pipelines without event time.
"""

from tidegate.eventtime.decoder import Decoder, TimeColumn
from tidegate.eventtime.process_time import ProcessTimeWatermark
from tidegate.eventtime.stage import EventtimeWatermark
from tidegate.eventtime.types import EventtimeTypes, Parsed, Parser, TimeOptions

__all__ = [
    "Decoder",
    "EventtimeTypes",
    "EventtimeWatermark",
    "Parsed",
    "Parser",
    "ProcessTimeWatermark",
    "TimeColumn",
    "TimeOptions",
]
