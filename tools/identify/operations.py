"""`roundscope identify` of operations beside attention: those of a captured run, or one call.

A run is a file of `roundscope.torch.capture(model, path, what="operations")`. A call is a
safetensors file of inputs and outputs by their names, whose metadata has "operation" and, if they
differ from the defaults, "settings" as JSON.
"""

import json
import time
from pathlib import Path
from typing import Any

from roundscope.operations.models.tape_file import FORMAT
from roundscope.tools.errors import bad
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.report.progress import telling
from roundscope.tools.report.terminal import console, plain, print_json
from roundscope.tools.results.folder import as_word, checked_folder, free_folder, write_json
from roundscope.tools.results.machine import all_versions, command_line

RECORD = "identify.json"
SCHEMA = "roundscope-identify-operations-1"


def metadata_of(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; nothing of any other file."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    try:
        with safe_open(path, "np") as file:
            return dict(file.metadata() or {})
    except SafetensorError:
        return {}


def is_of_operations(source: str) -> bool:
    """Return whether a file has operations beside attention."""
    about = metadata_of(Path(source))
    return about.get("format") == FORMAT or "operation" in about


def run(options: IdentifyOptions) -> None:
    """Identify the operations of a file, print them and write identify.json.

    Raises:
        UsageError: The file is damaged, or an array does not fit its operation.
    """
    from roundscope.operations.models.calls import Named, named
    from roundscope.operations.models.tape_file import load_tape

    path = Path(options.source)
    checked_folder(options.out, RECORD)
    began = time.perf_counter()
    with telling("identify") as tell:
        tell("reading")
        try:
            if metadata_of(path).get("format") == FORMAT:
                found = named(_revived(load_tape(path)), tell)
            else:
                name, inputs, outputs, settings = _call(path)
                from roundscope.operations.identification.identify import identify

                device = metadata_of(path).get("device", "")
                said = identify(name, inputs, outputs, settings=settings, tell=tell, device=device)
                found = [Named(name, "", ("",), said)]
        except ValueError as error:
            raise bad("FILE", options.source, str(error).removeprefix(f"{path}: ")) from None
    data = plain(
        {
            "schema": SCHEMA,
            "command": command_line(),
            "versions": all_versions("numpy"),
            "source": options.source,
            "operations": [_data(each) for each in found],
            "seconds": round(time.perf_counter() - began, 1),
        }
    )
    folder = options.out or free_folder(f"identify-{as_word(path.stem)}", options.source, RECORD)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, data | {"request": options.source})
    if options.json:
        print_json(data)
        return
    screen = console()
    for each in found:
        is_alone = not each.function and each.found is not None
        screen.print(str(each.found) if is_alone else str(each), markup=False)
    print(f"written: {folder / RECORD}")


def _revived(tape: Any) -> Any:
    """Return a tape with what a file leaves out, views and casts, if PyTorch is installed."""
    try:
        from roundscope.operations.models.torch.comparing.reviving import revived
    except ImportError:
        return tape
    return revived(tape)


def _data(each: Any) -> dict[str, Any]:
    found = each.found
    return {
        "operation": each.operation,
        "function": each.function,
        "modules": list(each.modules),
        "sentence": None if found is None else found.sentence,
        "found": found is not None and found.is_found,
        "plan": None if found is None else found.plan,
        "ties": [] if found is None else list(found.ties),
        "free": [] if found is None else list(found.free),
        "settings": {} if found is None else dict(found.settings),
        "share": None if found is None else found.share,
        "ulps": None if found is None else found.ulps,
        "zeros_of_other_sign": None if found is None else found.signs,
        "compared": None if found is None else found.compared,
        "numbers": None if found is None else found.numbers,
        "tried": None if found is None else found.tried,
    }


def _call(path: Path) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the call in a file: operation, inputs, outputs and settings.

    Raises:
        ValueError: The metadata cannot be read, or name no operation.
    """
    from safetensors.numpy import load_file

    from roundscope.operations.run import operation_named

    about = metadata_of(path)
    own = operation_named(about["operation"])
    try:
        settings = json.loads(about.get("settings", "{}"))
    except ValueError as error:
        raise ValueError(f"its metadata 'settings' are no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError("its metadata 'settings' must be a JSON object, such as {\"eps\": 1e-6}")
    arrays = load_file(path)
    names = [v.name for v in own.outputs]
    outputs = {name: x for name, x in arrays.items() if name in names}
    return own.name, {n: x for n, x in arrays.items() if n not in names}, outputs, settings
