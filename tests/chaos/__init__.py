"""The product under faults: real processes, actors over HTTP, and a judge of what they were answered."""
