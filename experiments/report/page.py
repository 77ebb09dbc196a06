"""What the HTML reports share: each is one file that opens anywhere, without scripts."""

from html import escape
from typing import Any

from roundscope.experiments.report import pictures

LONG = 36  # number of characters beyond which a cell may take several lines
CSS = """
body{margin:0 auto;max-width:960px;padding:24px 20px 60px;
font:16px/1.5 Georgia,'Times New Roman',serif;color:#1f2933;background:#fff}
h1{font-size:24px;margin:0 0 4px}
h2{font-size:20px;margin:44px 0 6px;border-top:2px solid #1f2933;padding-top:10px}
h3{font-size:16px;margin:28px 0 4px}p.lead{font-size:18px}
p.sub,figcaption,.note{color:#52606d;font-size:14px}
figure{margin:8px 0 26px}figure img{width:100%;height:auto}figcaption{margin-top:2px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;margin:8px 0}
th{text-align:right;border-bottom:1px solid #1f2933;padding:2px 7px;font-weight:600;
vertical-align:bottom}
td{text-align:right;padding:1px 7px;white-space:nowrap}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
th.text{text-align:left}td.text{white-space:normal;min-width:16em;text-align:left}
@media print{.wide{overflow:visible}td{white-space:normal}}
tr.lean td{color:#b2182b;font-weight:700}tr:nth-child(even) td{background:#f5f7fa}
pre{font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;background:#f5f7fa;padding:10px}
"""


def document(title: str, body: str) -> str:
    """Return the whole page as HTML; `title` is text, `body` is HTML."""
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{CSS}</style>"
    return f"<!doctype html>\n<html lang=en>{head}\n<body>{body}</body></html>\n"


def figure(title: str, picture: Any, caption: str) -> str:
    """Return a title, its picture (a matplotlib Figure, or None) and its caption, as HTML."""
    image = ""
    if picture is not None:
        image = f'<img alt="{escape(title)}" src="{pictures.data_uri(picture)}">'
    caption = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<h3>{escape(title)}</h3><figure>{image}{caption}</figure>"


def grid(heads: list[str], rows: list[list[str]], marked: list[bool] | None = None) -> str:
    """Return a table as HTML.

    heads: texts, in which newlines are kept; marked: for each row, whether it is drawn in red.
    Long cells may break into lines, so that no column is cut off.
    """
    wide = [any(len(row[i]) > LONG for row in rows) for i in range(len(heads))]
    head = "".join(
        f"<th{' class=text' * is_wide}>{escape(h).replace(chr(10), '<br>')}"
        for h, is_wide in zip(heads, wide, strict=True)
    )
    lines = ""
    for i, row in enumerate(rows):
        cells = "".join(f"<td{' class=text' * (len(c) > LONG)}>{escape(c)}" for c in row)
        lines += f"<tr{' class=lean' if marked and marked[i] else ''}>{cells}"
    return f"<div class=wide><table><tr>{head}{lines}</table></div>"
