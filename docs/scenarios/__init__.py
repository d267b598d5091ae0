"""Scenarios: small inputs run by the real operators, drawn from what the operators did.

Nothing here decides anything. A picture shows outcomes, and its `facts` hold the same outcomes as
values, so that tests/report/test_scenarios.py can compare them with the rule the scenario shows.

`python docs/scenarios --to docs/pictures --rules docs/explain` draws all of them and writes their
rules into the pages that show them; `make docs` does this before it builds the site. To add a
scenario, write a function with the decorator `@scenario(family, name)` in the file of its family;
its docstring is the rule it shows.
"""

from scenarios.gallery import FAMILIES, Scenario, all_scenarios, refresh_rules, write_scenarios

__all__ = ["FAMILIES", "Scenario", "all_scenarios", "refresh_rules", "write_scenarios"]
