"""Why a training of ours failed: what `tools.diagnose` has to know of a GPT and of a student."""
