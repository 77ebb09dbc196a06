"""The study of `roundscope reproduce fp4-rules`: published rules for a block of FP4 compared."""
