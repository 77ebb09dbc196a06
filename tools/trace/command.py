"""`roundscope trace`: tensors in; a sentence, a table, report.html and trace.json out."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from roundscope.attention.places import Sizes
from roundscope.emu.whole_files import safe_names, write_whole
from roundscope.tools.errors import UsageError
from roundscope.tools.report.deliver import write
from roundscope.tools.report.progress import Counted, telling
from roundscope.tools.report.terminal import plain, print_json, show
from roundscope.tools.results.folder import checked_folder
from roundscope.tools.results.machine import command_line
from roundscope.tools.signals import INTERRUPTED
from roundscope.tools.tensors.layers import (
    Layer,
    NotFiniteError,
    each_layer,
    path_given,
    without_numbers,
)
from roundscope.tools.tensors.overrides import overrides_of
from roundscope.tools.trace import data as trace_json
from roundscope.tools.trace.data import RECORD, RECORDS, folder_for, records
from roundscope.tools.trace.data import digest as request_digest
from roundscope.tools.trace.heads import heads_given, of_heads
from roundscope.tools.trace.options import TraceOptions
from roundscope.tools.trace.request import check_places, request
from roundscope.tools.trace.run import check_engine, memory_note, observe, slower
from roundscope.tools.trace.served import noted, plan_for, settled
from roundscope.tools.trace.summary import Summary, summarise
from roundscope.tools.trace.written import with_written


def run(options: TraceOptions) -> None:
    """Trace a file's layers, and write and print the results. Raises UsageError for bad usage."""
    path, overrides = path_given("FILE", options.file, options.sample), overrides_of(options.call)
    heads = heads_given(options.heads)

    def layers() -> Iterator[Layer]:
        found = each_layer(
            path,
            options.layout,
            options.layer,
            allow_nan=options.allow_nan,
            overrides=overrides,
        )
        return (of_heads(each, heads) for each in found)

    try:  # all of the file is read and checked before the first layer runs
        read = [without_numbers(each) for each in layers()]
    except NotFiniteError as error:
        raise UsageError(f"{error} or give --allow-nan to go on") from None
    asked = request(options, plan_for(read, options.plan), plan_for(read, options.beside))
    for each in read:
        own, (b, t, n, h), (_, s, g, hv) = settled(asked, each), each.q.shape, each.v.shape
        sizes = Sizes(
            batch=b,
            queries=t,
            keys=s,
            heads=n,
            key_heads=g,
            features=h,
            value_features=hv,
            block_q=own.block_q,
            block_k=own.block_k,
        )
        check_places(own, sizes, each.do is not None)
        check_engine(each, own)
    for note in filter(None, (slower(asked), memory_note(read, asked))):
        print(f"roundscope: {note}", file=sys.stderr)
    digest = request_digest(asked, path, options.layer, options.layout, overrides, heads)
    checked_folder(options.out, RECORD)
    folder = options.out or folder_for(path, asked, digest)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            telling("trace") as tell,
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):
            names = safe_names(each.name for each in read)
            counted = Counted(len(read))

            def progress(text: str) -> None:
                tell(counted(text))

            with records(folder / RECORDS, asked) as keep:
                summaries = []
                for name, each in zip(names, layers(), strict=True):
                    layer = noted(each, asked.plan, is_asked=options.plan is not None)
                    seen = observe(layer, asked, progress)
                    seen = with_written(seen, path, options.layout)
                    progress(f"{layer.name}: statistics")
                    keep(name, seen.trace)
                    summaries.append(summarise(seen))
                    del seen  # which is large, before the next one is made
                    counted.next()
            from roundscope.tools.trace.report.report import report  # which imports matplotlib

            document = trace_json.document(summaries, asked, path.name, command_line())
            found = report(summaries, plain(document | {"request": digest}), tell, options.every)
            written = write(found, folder, RECORD)
            if options.png:
                _drawn(summaries, names, folder)
    except KeyboardInterrupt:
        print(f"roundscope: interrupted; {folder} is not complete", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    if options.json:
        print_json(found.data)
    else:
        show(found.brief)
        rows = [folder / RECORDS] if (folder / RECORDS).exists() else []
        print(f"written: {', '.join(map(str, [*written, *rows]))}")


def _drawn(summaries: list[Summary], names: list[str], folder: Path) -> None:
    """Write the page's pictures as <layer>-<title>.png; names: those of the layers in files."""
    from roundscope.tools.report.pictures import png
    from roundscope.tools.trace.report.captions import shown
    from roundscope.tools.trace.report.report import least_exact

    pictured = least_exact(summaries)
    for s, layer in zip(summaries, names, strict=True):
        for title, picture, *_ in shown(s) if s.layer.name in pictured else ():
            if picture is not None:
                name = f"{layer}-{title.lower().replace(' ', '-')}.png"
                write_whole(folder / name, png(picture))
