"""What is trained: failing cases, rows of the ablation table, sizes, and the trainings for them."""
