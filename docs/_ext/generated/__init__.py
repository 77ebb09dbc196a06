"""What pages of the reference say that is made from the code; `make reference` writes it there."""
