"""`roundscope report RUN`: the page of a training run."""
