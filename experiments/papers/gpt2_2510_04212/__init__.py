"""How far does GPT-2 small's own size get on the arithmetic of arXiv 2510.04212?"""
