"""`roundscope identify`: find the arithmetic of a kernel from its inputs and outputs.

The kernel is called, or its numbers are read from a file; the answer is printed and written to
identify.json.
"""

import numpy as np

from roundscope.tools.identify import shown
from roundscope.tools.identify.identify import identify
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.identify.reading import Call, read
from roundscope.tools.identify.search import check_budget
from roundscope.tools.report.progress import telling
from roundscope.tools.report.terminal import console, plain, print_json
from roundscope.tools.results.folder import (
    as_word,
    checked_folder,
    free_folder,
    tell_replaced,
    write_json,
)

RECORD = "identify.json"


def run(options: IdentifyOptions) -> None:
    """Identify the arithmetic of a kernel, or of the outputs in a file.

    Raises:
        UsageError: bad usage.
    """
    check_budget(options.budget)
    checked_folder(options.out, RECORD)
    with telling("identify") as tell, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        tell("reading")
        call = read(options)
        found = identify(call.given, call.returned, tell, options.budget, call.head)
    digest = shown.digest(options.source, call)
    folder = options.out or free_folder(f"identify-{_word(call)}", digest, RECORD)
    data = plain(shown.document(call, found) | {"request": digest})
    tell_replaced(folder, digest, RECORD)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, data)
    if options.json:
        print_json(data)
    else:
        shown.show(call, found, console())
        print(f"written: {folder / RECORD}")


def _word(call: Call) -> str:
    return as_word(f"{call.name}-causal" if call.x.is_causal else call.name)
