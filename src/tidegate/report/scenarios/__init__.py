"""Scenarios: small inputs run by the real operators and drawn from what these did.

Nothing here decides anything: a picture shows outcomes, and `facts` says them in words, so that a
test can hold both against the rule that the scenario is there to show.
"""

from tidegate.report.scenarios.gallery import Scenario, all_scenarios, write_scenarios

__all__ = ["Scenario", "all_scenarios", "write_scenarios"]
