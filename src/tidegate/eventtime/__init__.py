"""Event time: which column carries it, how it is read, and the watermark that orders rows by it."""

from tidegate.eventtime.decoder import Decoder, TimeColumn
from tidegate.eventtime.process_time import ProcessTimeWatermark
from tidegate.eventtime.registry import EventtimeTypes, Parsed, Parser
from tidegate.eventtime.stage import EventtimeWatermark

__all__ = [
    "Decoder",
    "EventtimeTypes",
    "EventtimeWatermark",
    "Parsed",
    "Parser",
    "ProcessTimeWatermark",
    "TimeColumn",
]
