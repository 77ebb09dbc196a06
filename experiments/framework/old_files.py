"""Results files of older versions, in which every study had its own tables, read into `runs`.

One SELECT for each kind of file says how its rows become rows of `runs`; the file's application_id
says of which kind it is. An old file is left unchanged, but one that has the name of the study's
new file is renamed to NAME-old.sqlite, once, since the new file takes its place.
"""

import sqlite3
from pathlib import Path

RUNS = "key, condition, seed, steps, diverged, loss, curve, extra, config, device, finished"
_ABOUT = "config, device, finished"
_AUDIT = ", ".join(
    f"'{name}', json(number_text({name}))"
    for name in ("saturated", "underflow", "shrink", "error", "apart")
)
KINDS = {  # application_id -> its rows as rows of `runs`
    b"RSdo": (
        f"""
        SELECT key, json_object('site', site, 'mode', mode, 'bits', bits, 'rate', rate),
            seed, steps, diverged, loss,
            (SELECT coalesce(json_group_array(
                json_array(step, json(number_text(loss)), json(number_text(w_q)))), '[]')
             FROM (SELECT * FROM old.curves AS c WHERE c.key = doses.key ORDER BY step)),
            json_object('shares', json(coalesce({{shares}}, '[]'))), {_ABOUT}
        FROM old.doses"""
    ),
    b"RSqy": (
        f"""
        SELECT key, json_object('changes', changes, 'tiles', tiles), seed, steps, diverged,
            loss, curve, json_object('norm', json(number_text(norm)), 'heads', json(heads),
                'rest', json(rest)), {_ABOUT}
        FROM old.trials"""
    ),
    b"RSm8": (
        f"""
        SELECT key, json_object('name', name, 'changes', changes, 'lr', lr), seed,
            json_extract(config, '$.steps'), diverged, loss, curve,
            json_object('audit', (SELECT json_group_array(json_object('step', step, 'layer', layer,
                'matrix', matrix, 'operand', operand, 'element', element, 'rule', rule,
                {_AUDIT}))
                FROM (SELECT * FROM old.audit AS a WHERE a.key = trials.key ORDER BY rowid))),
            {_ABOUT}
        FROM old.trials"""
    ),
    b"RSpx": (
        f"""
        SELECT key, json_object('name', name, 'changes', json(changes), 'lr', lr), seed, steps,
            diverged, loss, curve,
            json_object('spikes', spikes, 'measures', json(measures)), {_ABOUT}
        FROM old.runs"""
    ),
}
_BY_ID = {int.from_bytes(name, "big"): text for name, text in KINDS.items()}


def set_aside(path: Path) -> None:
    """Rename an old file that has the name of a study's new one to NAME-old.sqlite."""
    if _application(path) in _BY_ID:
        path.rename(path.with_name(f"{path.stem}-old.sqlite"))


def are_in(folder: Path) -> bool:
    """Return whether a folder has an old file."""
    return any(_application(path) in _BY_ID for path in folder.glob("*.sqlite"))


def read_in(connection: sqlite3.Connection, folder: Path) -> None:
    """Add to `runs` what old files of the folder hold and `runs` does not."""
    for path in sorted(folder.glob("*.sqlite")):
        if text := _BY_ID.get(_application(path)):
            connection.create_function("number_text", 1, _text, deterministic=True)
            connection.execute("ATTACH ? AS old", (str(path),))
            has_shares = any(
                row[1] == "shares" for row in connection.execute("PRAGMA old.table_info(doses)")
            )
            rows = text.format(shares="shares" if has_shares else "NULL")
            connection.execute(f"INSERT OR IGNORE INTO main.runs ({RUNS}) {rows}")
            connection.commit()
            connection.execute("DETACH old")


def _text(x: float | None) -> str:
    """Return a number as JSON with all of its bits; SQLite's own text has 15 digits."""
    return "null" if x is None else repr(x)


def _application(path: Path) -> int:
    """Return a file's application_id, 0 where it is no SQLite file."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        head = file.read(72)
    return int.from_bytes(head[68:72], "big") if head.startswith(b"SQLite format 3") else 0
