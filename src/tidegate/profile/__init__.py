"""What a recording contains, before any pipeline exists: `tidegate inspect` and `tidegate init`.

files.py         which files, of which format, and how to read some columns of them
roles.py         which column is key, topic, event time, arrival
time_columns.py  which columns can be read as a time, and in which unit
statistics.py    rates, jitter, gaps and duplicates per topic
inspect.py       the profile: all of the above, disorder, delays, suggested settings
show.py          the profile as tables in a terminal
starter.py       a first pipeline.yaml from the profile
"""

from tidegate.profile.inspect import Profile, inspect
from tidegate.profile.roles import Roles
from tidegate.profile.show import print_profile
from tidegate.profile.starter import starter

__all__ = ["Profile", "Roles", "inspect", "print_profile", "starter"]
