"""Reads lines of JSON {cron, from, to}, in UTC, and prints for each a list of the instants from `from` to `to`."""
import json
import sys
from datetime import datetime

from croniter import croniter

for line in sys.stdin:
    asked = json.loads(line)
    start, end = (datetime.fromisoformat(asked[k].replace("Z", "+00:00")) for k in ("from", "to"))
    found = []
    times = croniter(asked["cron"], start)
    at = times.get_next(datetime)
    while at <= end:
        found.append(at.strftime("%Y-%m-%dT%H:%M:%S.000Z"))
        at = times.get_next(datetime)
    print(json.dumps(found), flush=True)
