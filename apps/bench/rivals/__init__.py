"""Other people's queues, driven as the product's own is: what the suite of tasks is held against."""
