"""Write the parts of the reference that are made from the code; `make reference` runs this."""
