"""What a recording contains, before any pipeline exists: `tidegate inspect` and `tidegate init`.

files.py         which files, of which format, and their rows
text_csv.py      CSV of any dialect            text_json.py  JSON lines, arrays, documents
rows.py          rows in memory, and what makes Spark read the same ones
time_columns.py  which columns can be read as a time, how, and how sure that is
time_formats.py  the layout of dates in text
roles.py         which column is key, topic, event time, arrival
order.py         disorder, wrong clocks, and the settings they ask for
statistics.py    rates, jitter, gaps and duplicates per topic
inspect.py       the profile: all of the above
starter.py       a first pipeline.yaml from the profile, proved on its rows
show.py          the profile as tables in a terminal      spans.py  spans of time for people
"""

from tidegate.profile.inspect import Profile, inspect, inspect_rows
from tidegate.profile.roles import Roles
from tidegate.profile.show import print_profile
from tidegate.profile.starter import Proof, prove, starter

__all__ = [
    "Profile",
    "Proof",
    "Roles",
    "inspect",
    "inspect_rows",
    "print_profile",
    "prove",
    "starter",
]
