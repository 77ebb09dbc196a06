"""The axes of a sweep and the cells that they make: words, values, plans, inputs."""
