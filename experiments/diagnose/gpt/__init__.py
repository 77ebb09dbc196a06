"""The diagnosis of a GPT: its units (layer, head, event), its run, its replays."""
