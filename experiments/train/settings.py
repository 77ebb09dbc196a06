"""The settings of `roundscope train`: a TOML file and words make `Settings`.

Both have the same keys.

file    layers = 4 ...: the fields of Config;  seeds = [0, 1];  [arms] name = "change; change";
        [at] 300 = "change"
words   layers=4 ... of the same keys, which replace those of the file; --seeds, --arm NAME=TEXT
        and --at STEP TEXT replace the file's
warmup  by default a tenth of steps (of decay_steps, if given), at most 100
arms    every seed of every arm is one run; all arms of a seed have the same batches. In an arm's
        text, lr=1e-2 sets its peak rate
"""

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roundscope.attention.grammar.ranges import numbers
from roundscope.emu.errors import unknown
from roundscope.experiments.train.config import WORD, Config
from roundscope.experiments.train.gpt.interventions import changes_of
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.toml_file import toml_of

TYPES = typing.get_type_hints(Config)
TABLES = ("seeds", "arms", "at")
ONLY = "run"  # the name of an arm that nobody named


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run among several of one shape.

    name, changes   its name and changes;  lr: its peak learning rate
    seed            added to the config's two seeds
    """

    name: str
    changes: tuple[str, ...] = ()
    lr: float
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A config, its arms, and the changes of all arms from a step on, in the order of steps."""

    config: Config
    arms: tuple[Arm, ...]
    at: tuple[tuple[int, str], ...] = ()


def settings(
    words: Sequence[str],
    *,
    arms: Sequence[str] = (),
    at: Sequence[str] = (),
    seeds: str | None = None,
    before: Mapping[str, Any] | None = None,
) -> Settings:
    """Return what words, options and an earlier run ask for. UsageError with the repair."""
    files = [w for w in words if w.endswith(".toml") and "=" not in w]
    if len(files) > 1:
        first = f"{files[0]} is given already; one file, and words for what differs"
        raise bad("CONFIG", files[1], first)
    given = dict(before or {})
    for name, value in (toml_of(Path(files[0]), "CONFIG") if files else {}).items():
        if name not in (*TYPES, *TABLES):
            raise UsageError(f"{files[0]}: {unknown('setting', name, (*TYPES, *TABLES))}")
        given[name] = value
    given |= _words([w for w in words if w not in files])
    tables = {name: given.pop(name) for name in TABLES if name in given}
    own = {name: typed(name, value) for name, value in given.items()}
    usual = Config()
    end = own.get("decay_steps") or own.get("steps", usual.steps)
    config = Config(**{"warmup": min(usual.warmup, end // 10), **own})
    named = _named(arms) or tables.get("arms") or {ONLY: ""}
    chosen = _seeds(tables.get("seeds", [0]) if seeds is None else seeds)
    steps = [_at(text) for text in at] or [
        (_step(k), _checked(v)) for k, v in _table("at", tables.get("at", {})).items()
    ]
    found = [
        _arm(config, name, text, seed, len(chosen) > 1)
        for name, text in _table("arms", named).items()
        for seed in chosen
    ]
    in_order = tuple(sorted(steps, key=lambda pair: pair[0]))
    return Settings(config=config, arms=tuple(found), at=in_order)


def typed(name: str, value: Any) -> Any:
    """Return a value of the field `name`, from TOML's or text. UsageError with the repair."""
    if name not in TYPES:
        raise UsageError(unknown("setting", name, (*TYPES, *TABLES)))
    kind = TYPES[name]
    if name == "changes":
        if not isinstance(value, str | list | tuple):
            raise bad(name, value, 'give a list of texts, such as ["O=fp32"]')
        return tuple(_checked(t) for t in ([value] if isinstance(value, str) else value))
    options = typing.get_args(kind) or (kind,)
    if type(None) in options and (value is None or value == "none"):
        return None
    wanted = options[0]
    try:
        return _read(wanted, value)
    except (ValueError, OverflowError, TypeError):
        ends = ", or none" if type(None) in options else ""
        raise bad(name, value, f"give {_WORDS[wanted]}{ends}") from None


def plain(config: Config) -> dict[str, Any]:
    """Return a config as `settings(before=...)` takes it, in types of JSON."""
    values = asdict(config)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def settings_of(meta: Mapping[str, Any]) -> Settings:
    """Return the settings of the run whose checkpoint has the meta data `meta`."""
    arms = tuple(
        Arm(name=a["name"], changes=tuple(a["changes"]), lr=a["lr"], seed=a["seed"])
        for a in meta["arms"]
    )
    config = settings([], before=meta["config"]).config
    return Settings(config=config, arms=arms, at=tuple((s, t) for s, t in meta["at"]))


def meta_of(found: Settings) -> dict[str, Any]:
    """Return the settings as a checkpoint keeps them, from which `settings_of` reads them."""
    arms = [
        {"name": a.name, "changes": list(a.changes), "lr": a.lr, "seed": a.seed} for a in found.arms
    ]
    at = [list(pair) for pair in found.at]
    return {"config": plain(found.config), "arms": arms, "at": at}


def _words(words: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            repair = "write a setting as lr=1e-2, or name a file that ends in .toml"
            raise bad("KEY=VALUE", word, repair)
        if name in TABLES:
            raise UsageError(f"--{name}: give it as an option")
        if name not in TYPES:
            raise UsageError(unknown("setting", name, TYPES))
        if name in given:
            raise bad(name, value, f"is given already, as {given[name]}")
        given[name] = value
    return given


def _named(arms: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for text in arms:
        name, equals, changes = text.partition("=")
        if not equals or not name.strip() or name in named:
            own = "write NAME=TEXT with a name of its own, as in  wide='site=O -> fp32'"
            raise bad("--arm", text, f"{own}; NAME= alone changes nothing")
        named[name.strip()] = changes
    return named


def _table(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        line = f'{"300" if name == "at" else "wide"} = "site=O -> fp32"'
        raise bad(name, value, f"write a table of texts, as in  [{name}]  then  {line}")
    return value


def _seeds(seeds: Any) -> list[int]:
    try:
        seeds = list(numbers(seeds)) if isinstance(seeds, str) else seeds
    except ValueError as error:
        raise UsageError(f"--seeds: {error}") from None
    is_list = isinstance(seeds, list) and seeds and len(set(map(str, seeds))) == len(seeds)
    if not is_list or not all(type(s) is int and 0 <= s < WORD // 2 for s in seeds):
        raise bad("seeds", seeds, "give different whole numbers from 0 to 2^31 - 1")
    found: list[int] = seeds
    return found


def _at(text: str) -> tuple[int, str]:
    step, given, change = text.partition(":")
    if not given:
        repair = "write --at STEP CHANGE, as in  --at 300 'layer=1 head=7 site=O -> fp32'"
        raise bad("--at", text, repair)
    return _step(step), _checked(change.strip())


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise bad("--at", text, "a step is a whole number from 0")
    return int(text)


def _arm(config: Config, name: str, text: str, seed: int, several: bool) -> Arm:
    parts = [part.strip() for part in text.split(";") if part.strip()]
    rates = [part.removeprefix("lr=") for part in parts if part.startswith("lr=")]
    if len(rates) > 1:
        raise bad("--arm", f"{name}={text}", "one lr= for an arm")
    changes = tuple(_checked(part) for part in parts if not part.startswith("lr="))
    lr = replace(config, lr=typed("lr", rates[0]), min_lr=0.0).lr if rates else config.lr
    return Arm(name=f"{name}/{seed}" if several else name, changes=changes, lr=lr, seed=seed)


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise bad("change", text, "write text, as in  layer=1 head=7 site=O -> fp32")
    changes_of(text)
    return text


def _read(kind: type, value: Any) -> Any:
    """Return a value in its type. Raises ValueError for one of another."""
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is int and type(value) in (int, str):
        return int(value)
    if kind is float and not isinstance(value, bool) and math.isfinite(float(value)):
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    raise ValueError


_WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
