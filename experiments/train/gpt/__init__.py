"""The GPT: model, emulated attention and linear layers, changes of arithmetic, monitors, data."""
