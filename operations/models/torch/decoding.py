"""`decoded`: a run of a model token by token with a cache, as a server decodes."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown


@known_arguments
def decoded(prompt: int = 1) -> Callable[[nn.Module, Any], Tensor]:
    """Return a function for `run=` that reads a sequence as a server does that generated it.

    The first `prompt` tokens are read in one forward pass (the prefill), and each further one in a
    pass of its own, with the keys and values of those before in the model's cache. The tokens are
    given, so nothing is sampled. An `attention_mask` among the inputs gives each row positions that
    begin with its first token, as `generate()` of the transformers library has it.

    Args:
        prompt: How many tokens the first pass reads.

    Returns:
        A function of (model, inputs) that returns the logits (B, T, vocabulary). The model must
        take `cache` or `past_key_values`, and `use_cache`, as those of the transformers library do.

    Raises:
        ValueError: `prompt` is no positive whole number; when it runs, if it is more than the
            tokens or the model returned no cache.

    Example:
        >>> from roundscope.torch import decoded
        >>> decoded(prompt=0)
        Traceback (most recent call last):
        ValueError: prompt=0: must be a whole number of 1 or more
    """
    if not isinstance(prompt, int) or isinstance(prompt, bool) or prompt < 1:
        raise ValueError(f"prompt={shown(prompt)}: must be a whole number of 1 or more")

    def run(model: nn.Module, inputs: Any) -> Tensor:
        more = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
        tokens, mask = more.pop("input_ids"), more.pop("attention_mask", None)
        more.pop("use_cache", None)
        if prompt > tokens.shape[1]:
            raise ValueError(f"prompt={prompt}: the inputs have {tokens.shape[1]} tokens")
        takes = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
        name = "cache" if "cache" in takes else "past_key_values"  # its name since transformers 5
        cache, logits, start = None, [], 0
        for end in range(prompt, tokens.shape[1] + 1):
            own = dict(more)
            if mask is not None:
                positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
                own |= {"attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
            out = model(tokens[:, start:end], use_cache=True, **{name: cache}, **own)
            cache, start = getattr(out, name, None), end
            if cache is None and end < tokens.shape[1]:
                raise ValueError(
                    f"{type(model).__name__} returned no {name}; give run= a function of"
                    " your own that decodes with its cache"
                )
            logits.append(out.logits)
        return torch.cat(logits, 1)

    return run
