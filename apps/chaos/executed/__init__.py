"""Work that the product's own executors do while they are killed; installed where chaos runs, and nowhere else."""
