"""Libraries of others that lie in the page, byte for byte as their registry has them.

`python -m tidegate.report.vendor` fetches them anew from the addresses in lock.json, checks what
came against the integrity noted there, and writes the files.
"""
