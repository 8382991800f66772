"""A task worker that counts the lines of the text files in a folder, by suffix."""

import logging
from pathlib import Path

from gatehouse_client import Client, Failed, Result, Task, Worker

PARAMS = {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]}

client = Client.from_environment()
# As often as you like: ask.py, which imports this, too.
client.register_type(name="count_lines", params_schema=PARAMS, lease_seconds=15)
worker = Worker(client, capacity=2)


@worker.handles("count_lines")
def count_lines(task: Task) -> Result:
    folder = Path(task.params["folder"]).expanduser()
    if not folder.is_dir():
        raise Failed("no_folder", f"{folder} is no folder of this machine.", retryable=False)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # An earlier run may have been broken off: go on where it has saved.
    done: dict[str, int] = (task.checkpoint or {}).get("done", {})
    start: int = (task.checkpoint or {}).get("files", 0)
    for number, path in enumerate(files[start:], start=start + 1):
        try:
            lines = len(path.read_text(encoding="utf-8").splitlines())
        except (UnicodeDecodeError, OSError):
            continue  # no text
        suffix = path.suffix or "none"
        done[suffix] = done.get(suffix, 0) + lines
        task.progress(100 * number / len(files), path.name)
        if number % 100 == 0 or task.checkpoint_wanted:
            task.save({"files": number, "done": done})
    return Result(content=done, summary=f"{sum(done.values())} lines in {len(files)} files of {folder}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run()
