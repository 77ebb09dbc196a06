"""`roundscope watch LOG`: what a watched training has logged, as a picture and as text."""
