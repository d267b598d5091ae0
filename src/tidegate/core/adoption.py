"""What may change under a state: settings compared, and the two-column difference of a refusal.

A state records the name, the version and the settings of the stage that made it (`identity`). When
a stage with other settings takes it up, every setting that differs is looked up in two tables of
the operator: `adopts` says what a change of it does, `refuses` why it cannot be changed. So the
answer is the same for a snapshot in process, a checkpoint of Spark, and the documentation.

    found in the state    [eventtime_watermark, window]
    wanted now            [eventtime_watermark, window, compact]
                           kept: settings compared         appended: starts empty

Stages are compared by position. Behind the stages kept, old ones may be removed and new ones
appended; one that is in both lists has moved, which is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.core.time import format_duration
from tidegate.errors import StateError

__all__ = ["SettingChange", "StageMatch", "changed_settings", "match_stages", "setting_difference"]

STAGE_REMOVED = "stage_removed"
"""The reason with which rows leave that a removed stage held."""

_WIDEST = 40
"""Characters of a value in the difference; what is longer is cut, so that two columns fit."""


class SettingChange(NamedTuple):
    """One setting that differs between a state and the stage that takes it up."""

    stage: str
    """The name of the stage."""
    setting: str
    """The setting, with dots for what is inside of it: `window.size`."""
    was: Any
    """Its value in the state, as a plain JSON value."""
    now: Any
    """Its value now."""
    refusal: str | None = None
    """Why it cannot be adopted; None: it can."""


class StageMatch(NamedTuple):
    """How the stages of a state and those of a chain belong together."""

    kept: int
    """This many stages, from the first on, are in both."""
    removed: tuple[str, ...]
    """The stages behind them that only the state has."""
    appended: tuple[str, ...]
    """The stages behind them that only the chain has."""


def match_stages(found: Sequence[str], wanted: Sequence[str]) -> StageMatch:
    """Match stages by position.

    Args:
        found: the names of the stages in the state.
        wanted: the names of the stages that take it up.

    Raises:
        StateError: a stage is in both behind the first that differs: it was moved, or another one
            was put in or taken out before it. What it holds was made by other stages before it.

    Example:
        >>> match_stages(["eventtime_watermark", "window"], ["eventtime_watermark"])
        StageMatch(kept=1, removed=('window',), appended=())
        >>> match_stages(["batch", "window"], ["window", "batch"])
        Traceback (most recent call last):
            ...
        tidegate.errors.StateError: the stages of the state cannot be adopted in another order:
          in the state    batch, window
          now             window, batch
        append stages behind them or remove them from the end, or use a new output
    """
    kept = 0
    while kept < min(len(found), len(wanted)) and found[kept] == wanted[kept]:
        kept += 1
    removed, appended = tuple(found[kept:]), tuple(wanted[kept:])
    if set(removed) & set(appended):
        raise StateError(
            "the stages of the state cannot be adopted in another order:\n"
            f"  in the state    {', '.join(found)}\n"
            f"  now             {', '.join(wanted)}\n"
            "append stages behind them or remove them from the end, or use a new output"
        )
    return StageMatch(kept, removed, appended)


def changed_settings(
    old: Mapping[str, Any], new: Mapping[str, Any], stage: str = "", *, prefix: str = ""
) -> list[SettingChange]:
    """List the settings that differ, nested ones by their path.

    Args:
        old: the settings in the state.
        new: the settings now.
        stage: the name of the stage, for the result.
        prefix: the path so far; leave it empty.

    Example:
        >>> changed_settings({"a": 1, "w": {"size": 5}}, {"a": 1, "w": {"size": 6}}, "window")
        [SettingChange(stage='window', setting='w.size', was=5, now=6, refusal=None)]
    """
    out = []
    for name in dict.fromkeys((*new, *old)):
        was, now = old.get(name), new.get(name)
        if was == now and type(was) is type(now):
            continue
        path = f"{prefix}{name}"
        if (
            isinstance(was, Mapping)
            and isinstance(now, Mapping)
            and was.get("name") == now.get("name")
        ):
            out += changed_settings(was, now, stage, prefix=f"{path}.")
        else:
            out.append(SettingChange(stage, path, was, now))
    return out


def setting_difference(changes: Sequence[SettingChange], durations: Sequence[str] = ()) -> str:
    """Write changes as two columns, the state's and the present one's, one line per setting.

    Args:
        changes: what differs; those with a refusal say why behind the columns.
        durations: settings in nanoseconds, shown with a unit.

    Example:
        >>> change = SettingChange("window", "window.size", 5, 6, "windows are open")
        >>> print(setting_difference([change]))
          setting               in the state  now
          window: window.size   5             6    windows are open
    """
    rows = [("setting", "in the state", "now", "")]
    for each in changes:
        is_time = each.setting.partition(".")[0] in durations
        was, now = (_in_a_column(value, is_time) for value in (each.was, each.now))
        rows.append((f"{each.stage}: {each.setting}", was, now, each.refusal or ""))
    width = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"  {name:{width[0] + 1}}  {was:{width[1]}}  {now:{width[2]}}  {why}".rstrip()
        for name, was, now, why in rows
    )


def _in_a_column(value: Any, is_time: bool) -> str:
    """A value of a setting, short enough for a column."""
    if is_time and type(value) is int:
        return format_duration(value)
    text = "-" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
