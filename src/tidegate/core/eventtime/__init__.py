"""Event time: which column carries it, how it is read, and the watermark that orders rows by it."""

from tidegate.core.eventtime.decoder import Decoder, TimeColumn
from tidegate.core.eventtime.event_time import EventtimeWatermark
from tidegate.core.eventtime.process_time import ProcessTimeWatermark
from tidegate.core.eventtime.registry import EventtimeTypes, Parsed, Parser

__all__ = [
    "Decoder",
    "EventtimeTypes",
    "EventtimeWatermark",
    "Parsed",
    "Parser",
    "ProcessTimeWatermark",
    "TimeColumn",
]
