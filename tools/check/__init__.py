"""The commands `check` and `check-cast`: reports on a kernel or a cast that a user wrote."""
