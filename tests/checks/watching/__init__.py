"""End to end on a GPU: trainings that leak are warned by `watch` and saved by the cure."""
