"""The GPT: model, its emulated attention and linear layers, changes of their arithmetic, monitors,
data.
"""
