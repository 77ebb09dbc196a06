"""Steps 3 to 6 on the tensors of attention.

They say whether delta's error adds up, what makes it, and which repair removes it.
"""
