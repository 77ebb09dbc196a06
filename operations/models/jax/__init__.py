"""Recording the operations of a JAX function, and comparing two of them."""
