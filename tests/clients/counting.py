"""A worker as a process of its own: counts, saves each number, and can be made to rest at one on its first run."""

from typing import Any

from gatehouse_client import Client, Task, Worker

worker = Worker(Client.from_environment(), grace=1.0)


@worker.handles("counting")
def count(task: Task) -> dict[str, Any]:
    start = (task.checkpoint or {"next": 0})["next"]
    for number in range(start, 10):
        task.save({"next": number + 1})
        if number == task.params.get("rests_at") and task.run_id == 1:
            task.progress(message="resting")
            task.wait(600)
    return {"began_at": start}


if __name__ == "__main__":
    worker.run()
