"""What the runs say of every row of the paper, and of the controls that the paper does not have."""
