"""`roundscope report RUN`: the report of a training run."""
