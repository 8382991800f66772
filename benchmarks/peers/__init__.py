"""Other queues, driven as the product's own is."""
