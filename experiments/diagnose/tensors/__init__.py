"""Steps 3 to 6 on the tensors of attention: does delta's error add up, what makes it, which repair
removes it.
"""
