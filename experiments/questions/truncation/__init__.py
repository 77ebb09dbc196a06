"""What casts toward zero do to attention, to norms and to a training: `reproduce truncation`."""
