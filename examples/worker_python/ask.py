"""Has the lines of a folder counted by whoever can, and waits for the answer: ask.py FOLDER"""

import sys
from pathlib import Path

from worker import client

if not sys.argv[1:]:
    sys.exit("usage: ask.py FOLDER")
with client:
    task = client.queue(task_type="count_lines", params={"folder": str(Path(sys.argv[1]).resolve())})
    while not (status := client.status(task.task_id, wait=60)).complete:
        print("still at work")
    result = client.result(task.task_id)
    print(result.summary)
    for suffix, lines in sorted((result.content or {}).items()):
        print(f"{lines:8} {suffix}")
    for entry in client.read().entries:
        if status.terminal_receipt_id in entry.receipt_ids:
            client.ack_entries([entry.ref])
