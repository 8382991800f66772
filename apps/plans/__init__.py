"""DeleGate: an intent becomes a plan, and a plan is all that comes out. Nothing here can call a worker or queue a task."""
